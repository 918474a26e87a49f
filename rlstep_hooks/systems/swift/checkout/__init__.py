"""ms-swift as the checkout beside a launch has it: whether what decides the schedule of GRPO is that of a release."""
