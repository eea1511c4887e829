"""What a model is shown and what is read out of its replies: sections, segments, tags, windows; calls no tool."""
