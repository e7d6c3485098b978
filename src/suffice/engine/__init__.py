"""Requests, their scheduling, and the one decode loop."""
