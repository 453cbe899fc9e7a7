/* SPDX-License-Identifier: Apache-2.0 */
/* Files, as a table of functions that a test can make fail. The only user of file system calls. */
#ifndef SMLA_FS_H
#define SMLA_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Return non-zero to stop. */
typedef int (*smla_fs_visit_fn)(void *user, const char *name);

/* Results and errno as of the system calls of that name. Names are relative to an open directory. */
struct smla_fs {
    int (*mkdir)(const char *path, mode_t mode);
    int (*open_dir)(const char *path);                              /* O_NOFOLLOW */
    int (*open)(int dir, const char *name, int flags, mode_t mode); /* O_NOFOLLOW and O_CLOEXEC are added */
    int (*close)(int fd);
    int (*fstat)(int fd, struct stat *status);
    int (*stat_at)(int dir, const char *name, struct stat *status); /* of a symlink: itself; dir may be AT_FDCWD */
    ssize_t (*read)(int fd, void *data, size_t size);
    ssize_t (*write)(int fd, const void *data, size_t size);
    int (*fsync)(int fd);
    int (*rename)(int dir, const char *from, const char *to);
    int (*unlink)(int dir, const char *name);
    int (*touch)(int fd);               /* both times become now */
    int (*lock)(int fd, uint64_t byte); /* of one byte; EAGAIN when another holds it; ends with the process */
    int (*unlock)(int fd);              /* before closing: a child that was forked meanwhile holds it too */
    int (*list)(int dir, smla_fs_visit_fn visit, void *user);
};

extern const struct smla_fs smla_fs_system;

/* The helpers below return 0 or an errno. */

/* Creates a directory and its missing parents, mode 0700. */
int smla_fs_make_dirs(const struct smla_fs *fs, const char *path);

/* Why opening or reading something by the rules of trust below gave `error`, in words. `dir` AT_FDCWD: `name` is a
 * path. */
const char *smla_fs_reason(const struct smla_fs *fs, int dir, const char *name, bool or_root, int error);

/* Opens a directory that is no symlink, belongs to this user (`or_root`: or to root) and is not writable by
 * others (EPERM). */
int smla_fs_open_trusted(const struct smla_fs *fs, const char *path, bool or_root, int *dir);

struct smla_fs_contents {
    void *data; /* to be freed; NULL after an error */
    size_t size;
    time_t last_used;
};

/* Reads a regular file under the same rules of trust. `touch`: this counts as a use. */
int smla_fs_read_trusted(const struct smla_fs *fs, int dir, const char *name, bool or_root, bool touch, size_t max_size,
                         struct smla_fs_contents *contents);

struct smla_fs_file {
    char name[64];
    uint64_t bytes;
    time_t last_used;
};

/* The regular files of a directory, longest unused first; *files is to be freed. Longer names are left out. */
int smla_fs_list(const struct smla_fs *fs, int dir, struct smla_fs_file **files, size_t *count);

/* Publishes a file atomically: readers see the old one, or all of the new one. */
int smla_fs_publish(const struct smla_fs *fs, int dir, const char *temporary, const char *name, const void *data,
                    size_t size);

#endif
