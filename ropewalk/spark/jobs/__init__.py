"""Jobs over stores and topics, larger than one machine if need be: `ropewalk pipeline ...` runs them.

Each job is a pure core and a thin shell. The core takes bytes, arrays or plans and returns findings, columns or
files' contents; it knows no Spark and is tested without a JVM. The shell cuts the work into pieces, has them done
elsewhere (`tasks`), and puts the answers together.

Where the work is done is not where it was ordered: a piece may run on another machine, twice, or on a worker with
another version of this package. So the driver opens no file of a store or of a lake, every piece is a small value that
names what to read, what a piece writes has a name that follows from its input, and each piece first compares versions.

    scan.py         records of a log, damage told apart from its end       tasks.py    who does the pieces
    audit.py        several copies of one piece of log, compared           report.py   results, as table and JSON
    queue_files.py  the consume queues that a log asks for                 page.py     results, as a page with plots
    index_files.py  the key index that a log asks for                      lake.py     a Parquet lake and its manifest
    digest.py       copies on machines that do not see each other, compared by digests of their blocks
"""
