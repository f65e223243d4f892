"""Errors about files: locks, damage, full disks."""

from __future__ import annotations

import errno

from ..doctor.remedies import LOCKED, PROTECT, READ_AROUND, READ_BOUNDED, WRITE
from .rules import Fact, Rank, Rule

_NEVER_UNLOCK = (
    "Do not switch locking off (HDF5_USE_FILE_LOCKING=FALSE) to write: four writers without locks lose most of the "
    "data, without an error."
)
_ONE_OWNER = "One file for each writer, merged later, or one process that writes for all."

RULES = (
    Rule(
        name="h5_lock",
        title="HDF5: unable to lock file",
        errno=errno.EAGAIN,
        needles=("unable to lock file",),
        # 33 is Windows' word for it, where the errno stays 0.
        pattern=r"unable to lock file(?!.*errno = (?!11\b|35\b)(?!.*GetLastError\(\) = 33\b))",
        rank=Rank.CAUSE,
        says=(
            "Another process (or another handle in this one, opened in another mode) has the file open. HDF5 locks a "
            "whole file: writing needs it alone, reading bears readers only. Mode 'w' has emptied the file by the "
            "time this is raised: HDF5 cuts before it locks."
        ),
        mistaken_for="A limit of descriptors or processes, because the errno is 11 here; and a broken file system.",
        facts=(Fact.LOCKS,),
        advice=(
            "Let the holder close it, or end it. A handle inherited over fork keeps the lock as well.",
            _ONE_OWNER + " Create with mode 'x' under a temporary name, never 'w' over a file that is in use.",
            _NEVER_UNLOCK,
        ),
        remedy=LOCKED,
    ),
    Rule(
        name="h5_no_locks",
        title="HDF5: this file system does not lock",
        needles=("unable to lock file", "unable to unlock file"),
        pattern=r"unable to (un)?lock file.*errno = (?!11\b|35\b)(?!.*GetLastError\(\) = 33\b)\d",
        rank=Rank.CAUSE,
        says=(
            "The file system refused the lock itself: a network or FUSE mount without locks (NFS without lockd, "
            "Lustre without -o flock, an object store). Nobody holds the file."
        ),
        mistaken_for="Another process that has the file open: that is errno 11.",
        facts=(),
        advice=(
            "To read: HDF5_USE_FILE_LOCKING=FALSE, or h5py.File(…, 'r', locking=False).",
            "To write: on a local disk, and copy the finished file. " + _ONE_OWNER,
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_flags",
        title="HDF5: file is already open for write",
        needles=("already open for write", "already open for swmr", "h5clear"),
        rank=Rank.CAUSE,
        says=(
            "A mark in the file says that a writer has it. Either one has, or the last one died before it could take "
            "the mark away; then what it had not flushed is lost."
        ),
        mistaken_for="A lock: a lock goes with its process, this mark stays in the file.",
        facts=(Fact.LOCKS, Fact.HEAD),
        advice=(
            "See that no process writes it; then copy the file, and `h5clear -s COPY` takes the mark away.",
            "Check the copy's rows against a count kept elsewhere before trusting it.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_twice",
        title="HDF5: this process has the file open already",
        needles=("file which is already open", "already open for read-only"),
        rank=Rank.CAUSE,
        says=(
            "The same process has the file open by another handle: one that only reads, where it is to be written "
            "now, or any, where mode 'w' is to empty it. A cell of a notebook that failed half-way keeps its handle."
        ),
        mistaken_for="Another process, or a damaged file. Another process gives `unable to lock file`.",
        facts=(Fact.LOCKS,),
        advice=(
            "Close the other handle: `with h5py.File(…) as f:` everywhere, and no handle kept by a Dataset.",
            "In a notebook restart the kernel; exceptions keep handles as well, by their traceback.",
        ),
        remedy=PROTECT,
    ),
    Rule(
        name="h5_truncated",
        title="HDF5: truncated file",
        needles=("truncated file",),
        pattern=r"truncated file(?! read)",  # that is what Pillow says of TIFF
        rank=Rank.CAUSE,
        says=(
            "The file is shorter than its own head says: a copy or download was cut, the disk was full, or its writer "
            "died or is still at work."
        ),
        mistaken_for="A wrong version of h5py or HDF5.",
        facts=(Fact.HEAD, Fact.LOCKS, Fact.DISK),
        advice=(
            "Compare size and checksum with the source, and copy it again.",
            "If it is still being written, wait; write under a temporary name and rename when closed.",
            "A file whose writer was killed cannot be trusted, even where it opens: write it anew.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="h5_signature",
        title="HDF5: file signature not found",
        needles=("file signature not found", "unable to locate superblock"),
        rank=Rank.CAUSE,
        says=(
            "It does not begin as an HDF5 file does: it is empty (its writer has not flushed yet, or mode 'w' emptied "
            "it), cut at the front, or another thing: a git-lfs pointer, a web page that says 404, gzip, NetCDF-3."
        ),
        mistaken_for="A damaged file that could be repaired.",
        facts=(Fact.HEAD, Fact.LOCKS),
        advice=(
            "Look at it: `file NAME`, `head -c 200 NAME`; `git lfs pull` fetches what a pointer stands for.",
            "If a writer has it, wait until it has closed it.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
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
        facts=(Fact.HEAD,),
        advice=(
            "`holdfast inspect FILE` says what it is; GZIP and ZLIB are told by content.",
            "In TensorFlow: TFRecordDataset(files, compression_type='GZIP').",
            "`holdfast verify FILE` checks every record; `holdfast salvage FILE OUT` gets the intact ones back.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="tf_checkpoint",
        title="TensorFlow: a checkpoint cannot be read",
        needles=("not an sstable", "to be an sstable", "unable to open table file", "restored bytes"),
        rank=Rank.CAUSE,
        says=(
            "A checkpoint was to be restored, and the file is none, or not a whole one: a name with `.data-00000-of-…` "
            "or `.index` was given instead of what stands before it, a part of the checkpoint was not copied, or its "
            "writer was ended."
        ),
        mistaken_for="Damaged training data: DataLossError stands for both.",
        facts=(Fact.HEAD,),
        advice=(
            "Give the prefix that all its files have in common, as `tf.train.latest_checkpoint(folder)` does.",
            "Compare the sizes of `.index` and `.data-*` with the source, and copy them again; take the last one "
            "before if its writer was ended.",
        ),
    ),
    Rule(
        name="tfrecord",
        title="TFRecord: DataLossError",
        needles=("datalosserror", "corrupted record at", "truncated record at", "data loss: ", "data_loss: "),
        # "train data loss: 0.31" is another thing.
        pattern=r"DataLossError|(corrupted|truncated) record at|(^|[\]:'\"(] ?)data[ _]loss: (?!\d)",
        rank=Rank.CAUSE,
        says=(
            "A record does not fit its checksum, or the file ends inside one: bytes changed on the way, two writers "
            "had the file at once, a copy was cut, or its writer is still at work."
        ),
        mistaken_for=(
            "Several processes that read one file: reading is safe. And ignore_errors() does not skip the bad "
            "record, but drops the rest of the file."
        ),
        facts=(Fact.HEAD, Fact.DISK),
        advice=(
            "`holdfast verify FILE` tells damage from an unfinished file, and names every bad record.",
            "`holdfast salvage FILE OUT` writes all intact records to a new file, also those behind the damage.",
            "One writer for a file, under a temporary name until it is closed. Keep counts elsewhere: a file cut "
            "between two records raises nothing.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="EAGAIN_lock",
        title="A lock is held by another process",
        errno=errno.EAGAIN,
        needles=("resource temporarily unavailable", "errno 11", "blockingioerror", "error(11,"),
        pattern=r"temporarily unavailable|errno 11\b|BlockingIOError|error\(11, ",
        near=("flock(", "lockf(", "f_setlk", "filelock", "portalocker", "lock_nb"),
        rank=Rank.CAUSE,
        says="flock or lockf was asked not to wait (LOCK_NB), and another process has the lock.",
        mistaken_for="Too many open files (errno 24), or too many processes: the same errno comes from fork.",
        facts=(Fact.LOCKS,),
        advice=(
            "Wait for the holder, without LOCK_NB or in a loop with a bound.",
            "A child that inherited the descriptor keeps an flock alive after its parent is gone: end it, too.",
            "Closing any descriptor of the file drops a process's lockf locks: use flock for files opened twice.",
        ),
        remedy=LOCKED,
    ),
    Rule(
        name="ENOLCK",
        title="No locks available",
        errno=errno.ENOLCK,
        needles=("no locks available", "enolck", "errno 37", "error(37,"),
        pattern=r"no locks available|\bENOLCK\b|errno 37\b|error\(37, ",
        rank=Rank.CAUSE,
        says=(
            "The file system cannot lock: mostly NFS whose lock service (lockd, statd) is not reached, as with a home "
            "folder on it where caches keep their lock files. Nobody holds the lock."
        ),
        mistaken_for="A lock that another process holds: that is errno 11. Libraries that try again for ever hang.",
        facts=(),
        advice=(
            "Keep caches and lock files on a local disk: HF_HOME, XDG_CACHE_HOME, TORCH_HOME or TMPDIR.",
            "On NFS mount with working locks (version 4 has them built in), or with `local_lock=flock` if one machine "
            "alone uses the files.",
        ),
    ),
    Rule(
        name="ESTALE",
        title="Stale file handle",
        errno=errno.ESTALE,
        needles=("stale file handle", "stale nfs file handle", "estale", "errno 116", "error(116,"),
        pattern=r"stale (nfs )?file handle|\bESTALE\b|errno 116\b|error\(116, ",
        rank=Rank.CAUSE,
        says=(
            "On a network file system (NFS, some FUSE mounts) the file or folder was removed or replaced on the server "
            "while this process had it open, or the server exports another disk now. The open handle stays useless."
        ),
        mistaken_for="A damaged file or a broken network: other files of the same mount can be read.",
        facts=(),
        advice=(
            "Open the file again by its name. A worker whose current folder is gone has to be started again.",
            "Do not replace or remove files that others read: write a new version under a new name.",
            "If every path of the mount says so, mount it again.",
        ),
        remedy=WRITE,
    ),
    Rule(
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
        facts=(Fact.INOTIFY,),
        advice=(
            "Watch less: leave out data folders, node_modules, .git and checkpoints.",
            "As root: `sysctl fs.inotify.max_user_watches=524288`.",
        ),
    ),
    Rule(
        name="ENOSPC",
        title="No space left on device",
        errno=errno.ENOSPC,
        needles=("no space left on device", "enospc", "errno 28", "error(28,"),
        pattern=r"no space left|\bENOSPC\b|errno 28\b|error\(28, ",
        rank=Rank.CAUSE,
        says=(
            "A file system is full: of bytes, or of inodes (many small files). It need not be the disk you think of: "
            "/dev/shm and /tmp are file systems of their own."
        ),
        mistaken_for="The data disk, when it was /dev/shm; and inotify's watches give the same errno.",
        facts=(Fact.DISK, Fact.SHM),
        advice=(
            "`df -h` and `df -i` on the path in question; deleted files that are still open count: `lsof +L1`.",
            "What was being written is not whole: HDF5 files above all. `holdfast verify` tells for TFRecord.",
            "Temporary files elsewhere: TMPDIR=/big/disk.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="EDQUOT",
        title="Disk quota exceeded",
        errno=errno.EDQUOT,
        needles=("quota exceeded", "edquot", "errno 122", "error(122,"),
        pattern=r"disk quota exceeded|\bEDQUOT\b|errno 122\b|error\(122, ",
        rank=Rank.CAUSE,
        says="This user, group or project has all the bytes or files that its quota allows, however empty the disk is.",
        mistaken_for="A full disk: `df` shows room.",
        facts=(Fact.DISK,),
        advice=(
            "`quota -s`, or `lfs quota -h -u $USER PATH` on Lustre, says which one is full; files count as well.",
            "Caches and checkpoints elsewhere: HF_HOME, XDG_CACHE_HOME, TORCH_HOME, TMPDIR. What was being written is "
            "not whole.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_open",
        title="HDF5: the file cannot be opened",
        needles=(
            "synchronously open file",
            "synchronously create file",
            "unable to open file",
            "unable to create file",
        ),
        pattern=r"synchronously|unable to (open|create) file ?(\(|: name =)|H5F\w+\(\): unable",
        rank=Rank.SIGN,
        says="h5py could not open the file. What stands in the parentheses is the reason; this text has none known.",
        mistaken_for="A damaged file: a wrong path, missing rights or no free descriptor say the same.",
        facts=(Fact.HEAD, Fact.LOCKS, Fact.DESCRIPTORS),
        advice=(
            "See that the path exists for the process that opens it: workers and containers have other folders.",
            "See that no other process writes it.",
        ),
    ),
)

# Where no special row fits.
GENERAL = (
    Rule(
        name="ENOENT",
        title="No such file or directory",
        errno=errno.ENOENT,
        needles=("no such file or directory", "filenotfounderror", "enoent", "errno 2]", "error(2,"),
        pattern=r"no such file or directory|FileNotFoundError|\bENOENT\b|errno 2\]|error\(2, ",
        rank=Rank.SIGN,
        says=(
            "The path, or a folder on the way to it, is not there for this process: a wrong name, a relative path in "
            "another current folder, a disk that is mounted in one container and not in the other, a link that leads "
            "nowhere, or a file that another process has removed or has not written yet."
        ),
        mistaken_for="Missing rights, which are errno 13, and a full table of descriptors, which is errno 24.",
        facts=(),
        advice=(
            "Look with the eyes of the process that failed: `ls -l /proc/PID/cwd`, and `ls` inside its container.",
            "Give workers absolute paths, and let one process make folders before the others start.",
            "Read only files that are finished: write under a temporary name and rename.",
        ),
        remedy=READ_BOUNDED,
    ),
)
