"""OpenRLHF and its forks as the checkout beside a launch has them: what decides the schedule is read in their own source."""
