"""One repair from its baseline to its result: prompts, candidates, search, votes; asks the outside by a port."""
