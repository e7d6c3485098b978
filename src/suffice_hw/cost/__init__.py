"""Area and power: logic from gate equivalents, memories from a fit, switching from activity."""
