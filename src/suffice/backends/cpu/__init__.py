"""The CPU: plain values of techniques become objects of the compiled extension."""
