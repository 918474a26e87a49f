"""An exception as a record has it: in one line, whatever carried it here."""

from __future__ import annotations

from rlstep_hooks.record.describe import describe

CARRIED = """ray::TaskRunner.run() (pid=7, ip=10.0.0.1)
  File "/site-packages/verl/trainer/main_ppo.py", line 9, in run
    trainer.fit()
  File "/site-packages/rlstep_hooks/observe/patches.py", line 103, in __call__
    return self.wrapper(wrapped, instance, args, kwargs)
ValueError: my reward is broken"""


class CarriedError(RuntimeError):
    """As Ray hands a worker's exception on: its text is the worker's traceback, its cause the exception."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(CARRIED)
        self.cause = cause


def test_an_exception_is_its_type_and_text() -> None:
    assert describe(ValueError("two\nlines")) == "ValueError: two\nlines"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt: "


def test_one_that_carries_another_is_that_one() -> None:
    assert describe(CarriedError(ValueError("my reward is broken"))) == "ValueError: my reward is broken"
    assert describe(CarriedError(CarriedError(ValueError("inner")))) == "ValueError: inner"


def test_of_a_traceback_in_the_text_the_last_line_is_left() -> None:
    told = describe(CarriedError(None))
    assert told == "CarriedError: ray::TaskRunner.run() (pid=7, ip=10.0.0.1) ValueError: my reward is broken"
    loader = "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\nKeyError: 'a'\n"
    assert describe(KeyError(loader)).count("\n") == 0
    assert (
        describe(RuntimeError(loader)) == "RuntimeError: Caught KeyError in DataLoader worker process 0. KeyError: 'a'"
    )


def test_an_exception_that_is_its_own_cause_ends() -> None:
    error = CarriedError(None)
    error.cause = error
    assert describe(error).endswith("ValueError: my reward is broken")
