"""A Spark of its own: whether the report's plots rest on the rows that the estimates rest on."""

import sys

import spark_answers
from report.test_rows import QUESTIONS, check_rows

if __name__ == "__main__":
    session = spark_answers.start("local[2]")
    log = session.read.parquet(sys.argv[1])
    for name in ("clusters", "a condition", "expressions", "an action"):
        check_rows(log, QUESTIONS[name])
        print("same")
    session.stop()
