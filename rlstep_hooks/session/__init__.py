"""The one life of an audit: brings observation, judgement and views together."""
