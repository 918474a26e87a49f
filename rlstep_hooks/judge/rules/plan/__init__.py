"""RLS1xx: the plan and the configuration."""
