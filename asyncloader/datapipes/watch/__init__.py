"""Where the time of the threads goes that iterate pipes, and what pipes have come to."""
