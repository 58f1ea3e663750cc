"""Everything on one machine: environment, servers, processes, first contents, and a supervisor over them."""
