"""Errors about files: locks, damage, full disks."""

from __future__ import annotations

import errno

from .row import Ask, Rank, Row

_NEVER_UNLOCK = (
    "Do not switch locking off (HDF5_USE_FILE_LOCKING=FALSE) to write: four writers without locks lose most of the "
    "data, without an error."
)
_ONE_OWNER = "One file for each writer, merged later, or one process that writes for all."

ROWS = (
    Row(
        name="h5_lock",
        title="HDF5: unable to lock file",
        errno=errno.EAGAIN,
        needles=("unable to lock file",),
        pattern=r"unable to lock file(?!.*errno = (?!11\b|35\b))",
        rank=Rank.CAUSE,
        says=(
            "Another process (or another handle in this one, opened in another mode) has the file open. HDF5 locks a "
            "whole file: writing needs it alone, reading bears readers only. Mode 'w' has emptied the file by the "
            "time this is raised: HDF5 cuts before it locks."
        ),
        mistaken_for="A limit of descriptors or processes, because the errno is 11 here; and a broken file system.",
        asks=(Ask.LOCKS,),
        advice=(
            "Let the holder close it, or end it. A handle inherited over fork keeps the lock as well.",
            _ONE_OWNER + " Create with mode 'x' under a temporary name, never 'w' over a file that is in use.",
            _NEVER_UNLOCK,
        ),
    ),
    Row(
        name="h5_no_locks",
        title="HDF5: this file system does not lock",
        needles=("unable to lock file", "unable to unlock file"),
        pattern=r"unable to (un)?lock file.*errno = (?!11\b|35\b)\d",
        rank=Rank.CAUSE,
        says=(
            "The file system refused the lock itself: a network or FUSE mount without locks (NFS without lockd, "
            "Lustre without -o flock, an object store). Nobody holds the file."
        ),
        mistaken_for="Another process that has the file open: that is errno 11.",
        asks=(Ask.DISK,),
        advice=(
            "To read: HDF5_USE_FILE_LOCKING=FALSE, or h5py.File(…, 'r', locking=False).",
            "To write: on a local disk, and copy the finished file. " + _ONE_OWNER,
        ),
    ),
    Row(
        name="h5_flags",
        title="HDF5: file is already open for write",
        needles=("already open for write", "already open for read-only", "h5clear"),
        rank=Rank.CAUSE,
        says=(
            "A mark in the file says that a writer has it. Either one has, or the last one died before it could take "
            "the mark away; then what it had not flushed is lost."
        ),
        mistaken_for="A lock: a lock goes with its process, this mark stays in the file.",
        asks=(Ask.LOCKS, Ask.HEAD),
        advice=(
            "See that no process writes it; then copy the file, and `h5clear -s COPY` takes the mark away.",
            "Check the copy's rows against a count kept elsewhere before trusting it.",
        ),
    ),
    Row(
        name="h5_truncated",
        title="HDF5: truncated file",
        needles=("truncated file",),
        rank=Rank.CAUSE,
        says=(
            "The file is shorter than its own head says: a copy or download was cut, the disk was full, or its writer "
            "died or is still at work."
        ),
        mistaken_for="A wrong version of h5py or HDF5.",
        asks=(Ask.HEAD, Ask.LOCKS, Ask.DISK),
        advice=(
            "Compare size and checksum with the source, and copy it again.",
            "If it is still being written, wait; write under a temporary name and rename when closed.",
            "A file whose writer was killed cannot be trusted, even where it opens: write it anew.",
        ),
    ),
    Row(
        name="h5_signature",
        title="HDF5: file signature not found",
        needles=("file signature not found", "unable to locate superblock"),
        rank=Rank.CAUSE,
        says=(
            "It does not begin as an HDF5 file does: it is empty (its writer has not flushed yet, or mode 'w' emptied "
            "it), cut at the front, or another thing: a git-lfs pointer, a web page that says 404, gzip, NetCDF-3."
        ),
        mistaken_for="A damaged file that could be repaired.",
        asks=(Ask.HEAD, Ask.LOCKS),
        advice=(
            "Look at it: `file NAME`, `head -c 200 NAME`; `git lfs pull` fetches what a pointer stands for.",
            "If a writer has it, wait until it has closed it.",
        ),
    ),
    Row(
        name="tfrecord_start",
        title="TFRecord: corrupted record at 0",
        needles=("corrupted record at 0",),
        pattern=r"corrupted record at 0\b",
        rank=Rank.CAUSE,
        says=(
            "The very first record does not fit its checksum, so that it is most likely no plain TFRecord file at "
            "all: compressed with GZIP or ZLIB and read as plain, a pointer of git-lfs, or a download's error page."
        ),
        mistaken_for="Damage in the data.",
        asks=(Ask.HEAD,),
        advice=(
            "`holdfast inspect FILE` says what it is; GZIP and ZLIB are told by content.",
            "In TensorFlow: TFRecordDataset(files, compression_type='GZIP').",
            "`holdfast verify FILE` checks every record; `holdfast salvage FILE OUT` gets the intact ones back.",
        ),
    ),
    Row(
        name="tfrecord",
        title="TFRecord: DataLossError",
        needles=("datalosserror", "corrupted record at", "truncated record at", "data loss"),
        pattern=r"DataLossError|corrupted record at|truncated record at|\bdata loss\b",
        rank=Rank.CAUSE,
        says=(
            "A record does not fit its checksum, or the file ends inside one: bytes changed on the way, two writers "
            "had the file at once, a copy was cut, or its writer is still at work."
        ),
        mistaken_for=(
            "Several processes that read one file: reading is safe. And ignore_errors() does not skip the bad "
            "record, but drops the rest of the file."
        ),
        asks=(Ask.HEAD, Ask.DISK),
        advice=(
            "`holdfast verify FILE` tells damage from an unfinished file, and names every bad record.",
            "`holdfast salvage FILE OUT` writes all intact records to a new file, also those behind the damage.",
            "One writer for a file, under a temporary name until it is closed. Keep counts elsewhere: a file cut "
            "between two records raises nothing.",
        ),
    ),
    Row(
        name="EAGAIN_lock",
        title="A lock is held by another process",
        errno=errno.EAGAIN,
        needles=("resource temporarily unavailable", "errno 11", "blockingioerror", "error(11,"),
        near=("flock(", "lockf(", "f_setlk", "filelock", "portalocker", "lock_nb"),
        rank=Rank.CAUSE,
        says="flock or lockf was asked not to wait (LOCK_NB), and another process has the lock.",
        mistaken_for="Too many open files (errno 24), or too many processes: the same errno comes from fork.",
        asks=(Ask.LOCKS,),
        advice=(
            "Wait for the holder, without LOCK_NB or in a loop with a bound.",
            "A child that inherited the descriptor keeps an flock alive after its parent is gone: end it, too.",
            "Closing any descriptor of the file drops a process's lockf locks: use flock for files opened twice.",
        ),
    ),
    Row(
        name="inotify_watches",
        title="No more inotify watches for this user",
        errno=errno.ENOSPC,
        needles=("inotify watch", "inotify_add_watch", "number of file watchers", "inotify watches"),
        rank=Rank.CAUSE,
        says=(
            "ENOSPC from inotify has nothing to do with a disk: the user watches as many files as "
            "fs.inotify.max_user_watches allows."
        ),
        mistaken_for="A full disk.",
        asks=(Ask.INOTIFY,),
        advice=(
            "Watch less: leave out data folders, node_modules, .git and checkpoints.",
            "As root: `sysctl fs.inotify.max_user_watches=524288`.",
        ),
    ),
    Row(
        name="ENOSPC",
        title="No space left on device",
        errno=errno.ENOSPC,
        needles=("no space left on device", "enospc", "errno 28", "disk quota exceeded", "errno 122", "error(28,"),
        pattern=r"no space left|\bENOSPC\b|errno 28\b|quota exceeded|errno 122\b|error\(28, ",
        rank=Rank.CAUSE,
        says=(
            "A file system is full: of bytes, of inodes (many small files), or of this user's quota. It need not be "
            "the disk you think of: /dev/shm and /tmp are file systems of their own."
        ),
        mistaken_for="The data disk, when it was /dev/shm; and inotify's watches give the same errno.",
        asks=(Ask.DISK, Ask.SHM),
        advice=(
            "`df -h` and `df -i` on the path in question; deleted files that are still open count: `lsof +L1`.",
            "What was being written is not whole: HDF5 files above all. `holdfast verify` tells for TFRecord.",
            "Temporary files elsewhere: TMPDIR=/big/disk.",
        ),
    ),
    Row(
        name="h5_open",
        title="HDF5: the file cannot be opened",
        needles=(
            "synchronously open file",
            "synchronously create file",
            "unable to open file",
            "unable to create file",
            "can't open file",
        ),
        rank=Rank.SIGN,
        says="h5py could not open the file. What stands in the parentheses is the reason; this text has none known.",
        mistaken_for="A damaged file: a wrong path, missing rights or no free descriptor say the same.",
        asks=(Ask.HEAD, Ask.LOCKS, Ask.DESCRIPTORS),
        advice=(
            "See that the path exists for the process that opens it: workers and containers have other folders.",
            "See that no other process writes it.",
        ),
    ),
)
