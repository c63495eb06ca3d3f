"""Files that users already have, read into shardcost's nouns. Every file is taken as hostile."""
