/*
 * libcairn: files of a Cairn volume for C and C++ programs.
 *
 * Every call that returns int or ssize_t returns a negative errno when it fails, such as -ENOENT; cairn_last_error() has the path, the
 * cause and the next step as a text. Flags and modes are those of the system's <fcntl.h> and <sys/stat.h>. Paths are absolute within the
 * volume and have no encoding.
 *
 * Threads: everything may be used by several threads at once, but whoever frees something (cairn_disconnect, cairn_close,
 * cairn_closedir) is its last user. Calls block; none is made from a signal handler.
 *
 * fork(2): a child may use a cairn_volume of its parent: its first call connects anew, in a session of its own. Files and directories
 * that were open fail in the child with -EBADF, and nothing of them is written there; freeing them is allowed.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A connection to a volume, an open file, a directory that is listed. */
typedef struct cairn_volume cairn_volume;
typedef struct cairn_file cairn_file;
typedef struct cairn_dir cairn_dir;

/* Refuse all changes with -EROFS. */
#define CAIRN_READ_ONLY 1u
/* Closing a file makes it visible when all members have it in memory, and durable behind; without it, durable before it returns. */
#define CAIRN_CLOSE_VISIBLE 2u

/* How to connect. All zero but the size is the default. */
struct cairn_options {
    uint64_t size;               /* sizeof(struct cairn_options) */
    uint32_t flags;              /* CAIRN_READ_ONLY, CAIRN_CLOSE_VISIBLE */
    uint32_t timeout_ms;         /* longest time of a call; 0: 60 s */
    uint32_t connect_timeout_ms; /* longest time while nobody answers at the beginning; 0: 30 s */
    uint32_t reserved;           /* 0 */
    uint64_t memory_max;         /* bytes of data on its way; 0: 256 MiB */
    const char *rack;            /* of this process, or NULL */
};

/* Times are nanoseconds since 1970, negative before. */
struct cairn_stat {
    uint64_t ino;
    uint64_t size;
    uint64_t blocks;  /* of 512 bytes */
    uint64_t version; /* raised by every published change of the contents */
    int64_t atime_ns;
    int64_t mtime_ns;
    int64_t ctime_ns;
    int64_t btime_ns;
    uint32_t mode; /* with the type: S_ISDIR(mode) */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
};

struct cairn_dirent {
    struct cairn_stat stat; /* if has_stat; not for who may not search the directory */
    uint64_t ino;
    uint32_t type; /* S_IFREG, S_IFDIR, S_IFLNK, ... */
    uint32_t has_stat;
    char name[256]; /* ends with a zero byte */
};

/* What files can have, after redundancy. */
struct cairn_space {
    uint64_t bytes;
    uint64_t bytes_free;
    uint64_t files;
    uint64_t files_free;
};

/* A machine that has a part of a file. Longer texts are cut. */
struct cairn_host {
    char name[256];    /* as its server was told to call it; the address without one */
    char address[256]; /* host:port of its server */
    char rack[256];
};

/* A part of a file and the machines that have it, nearest to its writer first: each of them all of it, or of erasure coded and striped
 * parts each some of it. A hint: members change. */
struct cairn_place {
    uint64_t offset;
    uint64_t length;
    uint32_t host_count;
    uint32_t reserved;
    struct cairn_host hosts[16];
};

/* For cairn_utimens: leave the time as it is; the time now. */
#define CAIRN_TIME_OMIT INT64_MIN
#define CAIRN_TIME_NOW INT64_MAX

/* For cairn_rename: fail with -EEXIST if the target is there; swap both. */
#define CAIRN_RENAME_NOREPLACE 1u
#define CAIRN_RENAME_EXCHANGE 2u

/* The version of the library, such as "0.1.0". */
const char *cairn_version(void);
/* What the last call of this thread that failed has to say; valid until its next call. Never NULL. */
const char *cairn_last_error(void);

/* Connects. cluster: managers, "host:port[,host:port]"; NULL: $CAIRN_CLUSTER, or else 127.0.0.1:7400. volume: NULL is "default". */
int cairn_connect(const char *cluster, const char *volume, const struct cairn_options *options, cairn_volume **connected);
/* Writes everything out, ends the session and frees the volume, also when it fails. Files are closed before. */
int cairn_disconnect(cairn_volume *volume);
/* Makes everything that was written durable and visible. */
int cairn_sync(cairn_volume *volume);
int cairn_statfs(cairn_volume *volume, struct cairn_space *space);

int cairn_stat(cairn_volume *volume, const char *path, struct cairn_stat *found);
int cairn_lstat(cairn_volume *volume, const char *path, struct cairn_stat *found);
/* Modes of what is made have the process's umask, as it was when it connected, taken off. */
int cairn_mkdir(cairn_volume *volume, const char *path, mode_t mode);
/* The same with all that are missing above it; an existing directory is fine. */
int cairn_mkdirs(cairn_volume *volume, const char *path, mode_t mode);
int cairn_unlink(cairn_volume *volume, const char *path);
int cairn_rmdir(cairn_volume *volume, const char *path);
/* Atomic. flags: 0 replaces the target; CAIRN_RENAME_NOREPLACE or CAIRN_RENAME_EXCHANGE. */
int cairn_rename(cairn_volume *volume, const char *from, const char *to, unsigned int flags);
int cairn_symlink(cairn_volume *volume, const char *target, const char *path);
int cairn_link(cairn_volume *volume, const char *existing, const char *path);
/* The length of the link's text, of which at most size bytes are stored, without a zero byte behind. */
ssize_t cairn_readlink(cairn_volume *volume, const char *path, char *buffer, size_t size);
int cairn_chmod(cairn_volume *volume, const char *path, mode_t mode);
/* (uid_t)-1 and (gid_t)-1 leave it as it is. */
int cairn_chown(cairn_volume *volume, const char *path, uid_t uid, gid_t gid);
int cairn_utimens(cairn_volume *volume, const char *path, int64_t atime_ns, int64_t mtime_ns);
int cairn_truncate(cairn_volume *volume, const char *path, uint64_t size);
/* The part of a file at an offset, or the next one where that is in a hole, for programs that run their work near it: 1. 0: there is
 * nothing from there on. The next part begins at place->offset + place->length or behind it. */
int cairn_locate(cairn_volume *volume, const char *path, uint64_t offset, struct cairn_place *place);

/* Length of a value or of the names, each with a zero byte behind. With size 0 only the length is asked; -ERANGE: it is longer. */
ssize_t cairn_getxattr(cairn_volume *volume, const char *path, const char *name, void *value, size_t size);
ssize_t cairn_listxattr(cairn_volume *volume, const char *path, char *names, size_t size);
/* flags: 0, XATTR_CREATE or XATTR_REPLACE. */
int cairn_setxattr(cairn_volume *volume, const char *path, const char *name, const void *value, size_t size, int flags);
int cairn_removexattr(cairn_volume *volume, const char *path, const char *name);

/* flags of open(2): O_RDONLY, O_WRONLY or O_RDWR with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_NOFOLLOW. */
int cairn_open(cairn_volume *volume, const char *path, int flags, mode_t mode, cairn_file **opened);
/* Reads until size bytes are there or the file ends; how many. */
ssize_t cairn_pread(cairn_file *file, void *buffer, size_t size, uint64_t offset);
/* Writes all or fails; returns size. With O_APPEND the offset is not used: it goes behind the end, 64 MiB at a time in one piece each. */
ssize_t cairn_pwrite(cairn_file *file, const void *data, size_t size, uint64_t offset);
/* The same; what is returned is in *outcome before that. For languages in which a signal may take the place of an answer. */
ssize_t cairn_pwrite_noted(cairn_file *file, const void *data, size_t size, uint64_t offset, ssize_t *outcome);
/* What was written is seen by whoever reads from now on, and is durable unless the connection has CAIRN_CLOSE_VISIBLE. */
int cairn_flush(cairn_file *file);
/* What was written is durable and seen by others. */
int cairn_fsync(cairn_file *file);
int cairn_fstat(cairn_file *file, struct cairn_stat *found);
int cairn_ftruncate(cairn_file *file, uint64_t size);
/* Flushes and frees the file, also when it fails: then what was written since the last flush may be lost. */
int cairn_close(cairn_file *file);

int cairn_opendir(cairn_volume *volume, const char *path, cairn_dir **opened);
/* 1 and the next entry, or 0 at the end. "." and ".." are none. */
int cairn_readdir(cairn_dir *dir, struct cairn_dirent *entry);
int cairn_rewinddir(cairn_dir *dir);
int cairn_closedir(cairn_dir *dir);

#ifdef __cplusplus
}
#endif

#endif
