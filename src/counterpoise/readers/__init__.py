"""Where rows come from: arrays, frames, files and databases."""
