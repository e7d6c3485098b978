"""Growth of the cache: the BMC paper's figures and tables, measured on this machine."""
