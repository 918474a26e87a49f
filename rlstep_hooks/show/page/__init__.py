"""The report of a recorded run as one HTML page that needs no network and no scripts."""
