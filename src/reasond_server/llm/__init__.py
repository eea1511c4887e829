"""Language models behind one port: the call, its events, its token counts; knows no strategy."""
