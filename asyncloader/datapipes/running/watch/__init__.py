"""Where the time of threads goes that iterate pipes, and how many items pipes yield."""
