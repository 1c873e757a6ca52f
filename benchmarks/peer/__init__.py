"""The same tasks by every library: one module for each, which `peers.py` runs with the Python that has it.

A module has a function for each task that its library can do. It takes the task's data and returns a call, which is timed; what only brings
the data into the library's form stands before the call and is not. A task without a function is one that the library cannot do.

| function | data | the call returns |
|---|---|---|
| `evaluate` | `Log` | estimates: `{"ips": (value, lower, upper), …}`, and what the library says of them under `"says"` |
| `files` | a `File` | the same |
| `targets` | a `Log` with ten targets | estimates of every target, as `{"0 ips": …}` |
| `model` | `Log` | estimates with a reward model that the library fits |
| `lists` | `Lists` | estimates of lists of items |
| `learn` | a `Lesson` | the actions to take in its test contexts, one number each |
| `VERSION` | | the package whose version is shown |

Nothing here imports counterpoise but `ours.py`, and no module imports another but `data`.
"""
