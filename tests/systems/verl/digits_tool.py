"""A tool for verl's tool agent."""

from verl.tools.function_tool import function_tool


@function_tool
def digits(number: int) -> str:
    """Say a number.

    Args:
        number: The number.
    """
    return f"it is {number}"
