"""Area and power: of logic from gate equivalents and activity, of memories from a fit."""
