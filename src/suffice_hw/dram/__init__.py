"""HBM: an event-driven model of channels, banks and rows, an analytic model, and energy tables."""
