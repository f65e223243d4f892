"""The central writer: one process that many producers send their rows to, and that loses none it has acknowledged.

    producer → frames → server → journal → sealer → parts

settings.py     what a server is told
layout.py       which pieces a frame's payload has
frames.py       a frame: head, meta, payload
messages.py     what else is said on the socket
address.py      where the server listens, how it is found
chunk.py        rows on their way into a frame
link.py         a producer's connection
producer.py     the public face of producers: connect(), Producer
epochs.py       which server may write
segment.py      a file of the journal
marks.py        how many rows of each producer are in parts
journal.py      all segments, and what they were at the start
buffers.py      memory for frames that come in
connection.py   one producer, as the server sees it
crowd.py        all of them
intake.py       from frames that have arrived to acknowledged rows
server.py       the loop
sealing.py      the server's side of the sealer
sealer.py       the process that makes parts of segments
child.py        the process of out.server()
handle.py       out.server()'s own side: Server

The server and producers use no HDF5: only the sealer does, which may crash.
"""
