"""How the cache grows: the BMC paper's figures and tables on this machine."""
