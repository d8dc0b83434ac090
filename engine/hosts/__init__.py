"""Who computes, and where: host processes, the pools that share cells among them, Ray."""
