"""Scenarios that run the same requests on a reference engine and on the engine under test, and compare every token."""
