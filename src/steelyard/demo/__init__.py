"""The demo: an emulated fleet, the real gateway and a mixed load on one machine, watched in a table."""
