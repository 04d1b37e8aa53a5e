/* A layer below the system calls of one process, preloaded into it. It records, in one total order, all changes to files below one
 * directory. It can make a call fail or hang, or kill the process at a call.
 *
 * LOCKKEEPER_LAYER_ROOT    the directory (an absolute path)
 * LOCKKEEPER_LAYER_TRACE   the file to which records are appended; trace.rs reads them
 * LOCKKEEPER_LAYER_FAULT   "kill N", "tear N", "error N ERRNO", "errors N ERRNO" or "hang N": at the N-th call, from 1
 * LOCKKEEPER_LAYER_DISK    the on-disk contents of files whose cached contents differ, since a sync of them failed
 * LOCKKEEPER_LAYER_SYNC_US duration of a sync, microseconds
 *
 * A sync writes nothing here: the effects of a power failure are computed from the trace. Calls are forwarded to the kernel by
 * `syscall`, so no symbol needs to be looked up. Calls that are not defined here (writev, mmap, openat) would be missed: the reader of
 * the trace detects this, since it compares its result with the files. The file `said`, in which the process reports
 * acknowledgements, is recorded like the others, but its calls trigger no fault. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets are passed in one register");

enum kind { OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC, DATASYNC, SYNCED, RENAME, UNLINK, MKDIR, FAULT, FORGET };
enum fault { NONE, KILL, TEAR, ERROR, ERRORS, HANG };
enum owner { OTHERS, OURS, SAID };

struct header { uint32_t kind; int32_t file; uint64_t offset; uint64_t length; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root, *disk;
static int trace = -1;
static unsigned sync_us;
static enum fault fault;
static uint64_t fault_at, calls, syncs;
static int fault_errno;
static unsigned char owners[4096];

static void must(int holds, const char *what) {
    if (!holds) {
        dprintf(2, "layer: %s\n", what);
        _exit(70);
    }
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LOCKKEEPER_LAYER_TRACE"), *plan = getenv("LOCKKEEPER_LAYER_FAULT");
    const char *us = getenv("LOCKKEEPER_LAYER_SYNC_US"), *names[] = {"", "kill", "tear", "error", "errors", "hang"};
    root = getenv("LOCKKEEPER_LAYER_ROOT");
    disk = getenv("LOCKKEEPER_LAYER_DISK");
    if (!root || !path) return;
    sync_us = us ? (unsigned)atoi(us) : 0;
    if (plan) {
        char name[16];
        unsigned long at;
        must(sscanf(plan, "%15s %lu %d", name, &at, &fault_errno) >= 2, "a fault is a name and a number");
        for (int i = KILL; i <= HANG; i++)
            if (!strcmp(name, names[i])) fault = (enum fault)i;
        must(fault != NONE, "no such fault");
        fault_at = at;
    }
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    must(file >= 0, "the trace cannot be opened");
    trace = file;
}

static enum owner owner(int file) { return trace >= 0 && file >= 0 && file < 4096 ? owners[file] : OTHERS; }

static int is_below(const char *path) {
    size_t length = root ? strlen(root) : 0;
    return trace >= 0 && !strncmp(path, root, length) && (path[length] == '/' || path[length] == 0);
}

static void put(const void *data, size_t length) {
    for (const char *at = data; length > 0;) {
        long done = syscall(SYS_write, trace, at, length);
        must(done > 0, "the trace cannot be written");
        at += done;
        length -= (size_t)done;
    }
}

static void note(enum kind kind, int file, uint64_t offset, uint64_t length, const void *data) {
    struct header header = {kind, file, offset, length};
    put(&header, sizeof header);
    put(data, length);
}

static void note_path(enum kind kind, int file, uint64_t flags, const char *path) {
    note(kind, file, flags, strlen(path), path);
}

/* Counts a call of this kind. Returns the error with which it must fail, or 0. The caller holds the lock. */
static int strike(enum kind kind, int file, const void *data, size_t length, off_t offset) {
    int is_data = kind == WRITE || kind == TRUNCATE || kind == SYNC || kind == DATASYNC;
    if (fault == NONE || ((fault == ERROR || fault == ERRORS || fault == HANG) && !is_data)) return 0;
    calls++;
    if (calls < fault_at || (calls > fault_at && fault != ERRORS)) return 0;
    note(FAULT, file, kind, 0, "");
    if (fault == TEAR && length > 1) {
        /* The kernel may have completed any part of a write, but stops between two pages: a sector-aligned write is torn at a sector
         * boundary. */
        size_t part = length / 2 + calls % (length / 2);
        if (offset % 512 == 0 && length % 512 == 0) part -= part % 512;
        long done = part ? syscall(SYS_pwrite64, file, data, part, offset) : 0;
        if (done > 0) note(WRITE, file, (uint64_t)offset, (uint64_t)done, data);
    }
    if (fault == KILL || fault == TEAR) syscall(SYS_kill, getpid(), SIGKILL);
    if (fault == HANG || fault == KILL || fault == TEAR) {
        pthread_mutex_unlock(&lock);
        for (;;) pause();
    }
    return fault_errno;
}

static long failed(int error) {
    errno = error;
    return -1;
}

/* Truncation to zero empties the cache: removes the file's on-disk version. */
static void agree_with_disk(const char *path) {
    char on_disk[8192];
    snprintf(on_disk, sizeof on_disk, "%s%s", disk, path + strlen(root));
    syscall(SYS_unlinkat, AT_FDCWD, on_disk, 0);
}

static int open_noted(const char *path, int flags, mode_t mode) {
    if (!is_below(path)) return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    size_t length = strlen(path);
    enum owner by = length > 5 && !strcmp(path + length - 5, "/said") ? SAID : OURS;
    pthread_mutex_lock(&lock);
    if (by == OURS && flags & (O_CREAT | O_TRUNC)) strike(OPEN, -1, 0, 0, 0);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    must(file < 4096, "too many open files");
    if (file >= 0) {
        if (disk && flags & O_TRUNC) agree_with_disk(path);
        owners[file] = (unsigned char)by;
        note_path(OPEN, file, (uint64_t)((flags & O_CREAT ? 1 : 0) | (flags & O_TRUNC ? 2 : 0)), path);
    }
    pthread_mutex_unlock(&lock);
    return file;
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_noted(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_noted(path, flags, mode);
}

int close(int file) {
    if (owner(file) == OTHERS) return (int)syscall(SYS_close, file);
    pthread_mutex_lock(&lock);
    owners[file] = OTHERS;
    note(CLOSE, file, 0, 0, "");
    int done = (int)syscall(SYS_close, file);
    pthread_mutex_unlock(&lock);
    return done;
}

static ssize_t write_noted(int file, const void *data, size_t length, off_t offset) {
    long error = owner(file) == OURS ? strike(WRITE, file, data, length, offset) : 0;
    long done = error ? failed((int)error) : syscall(SYS_pwrite64, file, data, length, offset);
    if (done > 0) note(WRITE, file, (uint64_t)offset, (uint64_t)done, data);
    return done;
}

ssize_t pwrite64(int file, const void *data, size_t length, off_t offset) {
    if (owner(file) == OTHERS) return syscall(SYS_pwrite64, file, data, length, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = write_noted(file, data, length, offset);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return pwrite64(file, data, length, offset); }

ssize_t write(int file, const void *data, size_t length) {
    if (owner(file) == OTHERS) return syscall(SYS_write, file, data, length);
    pthread_mutex_lock(&lock);
    int appends = (int)syscall(SYS_fcntl, file, F_GETFL) & O_APPEND;
    off_t offset = syscall(SYS_lseek, file, 0, appends ? SEEK_END : SEEK_CUR);
    ssize_t done = write_noted(file, data, length, offset);
    if (done > 0) syscall(SYS_lseek, file, offset + done, SEEK_SET);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate64(int file, off_t length) {
    if (owner(file) == OTHERS) return (int)syscall(SYS_ftruncate, file, length);
    pthread_mutex_lock(&lock);
    int error = strike(TRUNCATE, file, 0, 0, 0);
    int done = (int)(error ? failed(error) : syscall(SYS_ftruncate, file, length));
    if (!done) note(TRUNCATE, file, (uint64_t)length, 0, "");
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

/* A sync covers the writes before its start, and only once it has returned. */
static int sync_noted(int file, enum kind kind) {
    pthread_mutex_lock(&lock);
    int error = strike(kind, file, 0, 0, 0);
    uint64_t number = ++syncs;
    note(kind, file, number, 0, "");
    pthread_mutex_unlock(&lock);
    if (error) return (int)failed(error);
    usleep(sync_us);
    pthread_mutex_lock(&lock);
    note(SYNCED, file, number, 0, "");
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int file) { return owner(file) == OTHERS ? (int)syscall(SYS_fsync, file) : sync_noted(file, SYNC); }

int fdatasync(int file) { return owner(file) == OTHERS ? (int)syscall(SYS_fdatasync, file) : sync_noted(file, DATASYNC); }

/* Replaces the cached contents of a file by those on disk. Only once per file: afterwards the two agree. */
static void show_disk(int file) {
    char name[64], path[4096], on_disk[8192], bytes[65536];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    long length = syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof path - 1);
    must(length > 0, "an open file has a name");
    path[length] = 0;
    must(is_below(path), "the root has one name");
    snprintf(on_disk, sizeof on_disk, "%s%s", disk, path + strlen(root));
    int from = (int)syscall(SYS_openat, AT_FDCWD, on_disk, O_RDONLY, 0);
    if (from < 0) return;
    int to = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_TRUNC, 0);
    must(to >= 0, "the file can be written");
    for (long done; (done = syscall(SYS_read, from, bytes, sizeof bytes)) > 0;)
        must(syscall(SYS_write, to, bytes, done) == done, "the file can be written");
    syscall(SYS_close, from);
    syscall(SYS_close, to);
    syscall(SYS_unlinkat, AT_FDCWD, on_disk, 0);
}

int posix_fadvise(int file, off_t offset, off_t length, int advice) {
    if (owner(file) != OURS || advice != POSIX_FADV_DONTNEED) return (int)syscall(SYS_fadvise64, file, offset, length, advice);
    pthread_mutex_lock(&lock);
    if (disk) show_disk(file);
    note(FORGET, file, 0, 0, "");
    pthread_mutex_unlock(&lock);
    return 0;
}

int rename(const char *from, const char *to) {
    if (!is_below(from)) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&lock);
    strike(RENAME, -1, 0, 0, 0);
    int done = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!done) {
        /* The offset is the length of the first path. */
        struct header header = {RENAME, -1, strlen(from), strlen(from) + strlen(to)};
        put(&header, sizeof header);
        put(from, strlen(from));
        put(to, strlen(to));
    }
    pthread_mutex_unlock(&lock);
    return done;
}

static int path_noted(enum kind kind, const char *path, mode_t mode) {
    int ours = is_below(path);
    if (ours) pthread_mutex_lock(&lock);
    if (ours) strike(kind, -1, 0, 0, 0);
    long done = kind == UNLINK ? syscall(SYS_unlinkat, AT_FDCWD, path, 0) : syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (ours && !done) note_path(kind, -1, 0, path);
    if (ours) pthread_mutex_unlock(&lock);
    return (int)done;
}

int unlink(const char *path) { return path_noted(UNLINK, path, 0); }

int mkdir(const char *path, mode_t mode) { return path_noted(MKDIR, path, mode); }

/* Prevents incomplete records: the exiting thread waits for file calls in progress and blocks later ones. */
__attribute__((destructor)) static void end(void) { pthread_mutex_lock(&lock); }
