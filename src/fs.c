/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int system_open_dir(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int system_open(int dir, const char *name, int flags, mode_t mode)
{
    return openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
}

static int system_stat_at(int dir, const char *name, struct stat *status)
{
    return fstatat(dir, name, status, AT_SYMLINK_NOFOLLOW);
}

static int system_rename(int dir, const char *from, const char *to)
{
    return renameat(dir, from, dir, to);
}

static int system_unlink(int dir, const char *name)
{
    return unlinkat(dir, name, 0);
}

static int system_touch(int fd)
{
    return futimens(fd, NULL);
}

/* Locks of the open file, not of the process: threads and contexts of one process exclude each other too. */
static int system_lock(int fd, uint64_t byte)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(byte >> 2), .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &range);
}

static int system_unlock(int fd)
{
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &all);
}

static int system_list(int dir, smla_fs_visit_fn visit, void *user)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return -1;
    }
    const struct dirent *entry;
    while ((entry = readdir(stream)) && !visit(user, entry->d_name))
        ;
    return closedir(stream);
}

const struct smla_fs smla_fs_system = {
    .mkdir = mkdir,
    .open_dir = system_open_dir,
    .open = system_open,
    .close = close,
    .fstat = fstat,
    .stat_at = system_stat_at,
    .read = read,
    .write = write,
    .fsync = fsync,
    .rename = system_rename,
    .unlink = system_unlink,
    .touch = system_touch,
    .lock = system_lock,
    .unlock = system_unlock,
    .list = system_list,
};

int smla_fs_make_dirs(const struct smla_fs *fs, const char *path)
{
    char *copy = strdup(path);
    int error = copy ? 0 : ENOMEM, of_parent = ENOENT;
    if (copy) {
        /* Errors of parents do not matter (they may exist and not be ours), unless one is missing in the end. */
        for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = 0;
            if (fs->mkdir(copy, 0700) != 0 && errno != EEXIST && errno != ENOENT)
                of_parent = errno;
            *slash = '/';
        }
        if (fs->mkdir(copy, 0700) != 0 && errno != EEXIST)
            error = errno == ENOENT ? of_parent : errno;
    }
    free(copy);
    return error;
}

static bool trusted(const struct stat *status, bool or_root)
{
    return (status->st_uid == geteuid() || (or_root && status->st_uid == 0)) &&
           !(status->st_mode & (S_IWGRP | S_IWOTH));
}

const char *smla_fs_reason(const struct smla_fs *fs, int dir, const char *name, bool or_root, int error)
{
    struct stat status;
    if (error != EPERM && error != ENOTDIR && error != ELOOP)
        return strerror(error);
    if (fs->stat_at(dir, name, &status) != 0)
        return error == ENOTDIR ? "a part of its path is not a directory" : strerror(error);
    if (S_ISLNK(status.st_mode))
        return "it is a symbolic link";
    if (error == ENOTDIR && !S_ISDIR(status.st_mode))
        return "it is not a directory";
    if (error != EPERM || trusted(&status, or_root))
        return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ? strerror(error) : "it is not a regular file";
    if (status.st_mode & (S_IWGRP | S_IWOTH))
        return "others than its owner may write to it, which chmod go-w ends";
    return or_root ? "it belongs neither to this user nor to root" : "it belongs to another user";
}

int smla_fs_open_trusted(const struct smla_fs *fs, const char *path, bool or_root, int *dir)
{
    struct stat status;
    *dir = fs->open_dir(path);
    if (*dir < 0)
        return errno;
    int error = 0;
    if (fs->fstat(*dir, &status) != 0)
        error = errno;
    else if (!trusted(&status, or_root))
        error = EPERM;
    if (error) {
        fs->close(*dir);
        *dir = -1;
    }
    return error;
}

static int read_all(const struct smla_fs *fs, int fd, void *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t count = fs->read(fd, (char *)data + done, size - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? errno : EIO;
        done += (size_t)count;
    }
    return 0;
}

static int read_open(const struct smla_fs *fs, int fd, bool or_root, size_t max_size, struct smla_fs_contents *contents)
{
    struct stat status;
    if (fs->fstat(fd, &status) != 0)
        return errno;
    if (!S_ISREG(status.st_mode) || !trusted(&status, or_root))
        return EPERM;
    if ((uint64_t)status.st_size > max_size)
        return EFBIG;
    contents->size = (size_t)status.st_size;
    contents->last_used = status.st_mtime;
    contents->data = malloc(contents->size + 1);
    return contents->data ? read_all(fs, fd, contents->data, contents->size) : ENOMEM;
}

int smla_fs_read_trusted(const struct smla_fs *fs, int dir, const char *name, bool or_root, bool touch, size_t max_size,
                         struct smla_fs_contents *contents)
{
    memset(contents, 0, sizeof *contents);
    /* O_NONBLOCK: a FIFO in its place must not hang us. */
    int fd = fs->open(dir, name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = read_open(fs, fd, or_root, max_size, contents);
    if (error) {
        free(contents->data);
        contents->data = NULL;
    } else if (touch) {
        (void)fs->touch(fd);
    }
    fs->close(fd);
    return error;
}

struct listing {
    const struct smla_fs *fs;
    int dir;
    int error;
    struct smla_fs_file *files;
    size_t count, capacity;
};

static int add_file(void *user, const char *name)
{
    struct listing *listing = user;
    struct stat status;
    if (strlen(name) >= sizeof listing->files->name || listing->fs->stat_at(listing->dir, name, &status) != 0 ||
        !S_ISREG(status.st_mode))
        return 0;
    if (listing->count == listing->capacity) {
        size_t capacity = 2 * listing->capacity + 64;
        struct smla_fs_file *files = realloc(listing->files, capacity * sizeof *files);
        if (!files) {
            listing->error = ENOMEM;
            return 1;
        }
        listing->files = files;
        listing->capacity = capacity;
    }
    struct smla_fs_file *file = &listing->files[listing->count++];
    strcpy(file->name, name);
    file->bytes = (uint64_t)status.st_size;
    file->last_used = status.st_mtime;
    return 0;
}

static int by_last_use(const void *a, const void *b)
{
    const struct smla_fs_file *first = a, *second = b;
    if (first->last_used != second->last_used)
        return first->last_used < second->last_used ? -1 : 1;
    return strcmp(first->name, second->name);
}

int smla_fs_list(const struct smla_fs *fs, int dir, struct smla_fs_file **files, size_t *count)
{
    struct listing listing = {.fs = fs, .dir = dir};
    if (fs->list(dir, add_file, &listing) != 0)
        listing.error = errno;
    if (listing.count)
        qsort(listing.files, listing.count, sizeof *listing.files, by_last_use);
    *files = listing.files;
    *count = listing.count;
    return listing.error;
}

static int write_all(const struct smla_fs *fs, int fd, const void *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t count = fs->write(fd, (const char *)data + done, size - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? errno : EIO;
        done += (size_t)count;
    }
    return fs->fsync(fd) == 0 ? 0 : errno;
}

int smla_fs_publish(const struct smla_fs *fs, int dir, const char *temporary, const char *name, const void *data,
                    size_t size)
{
    int fd = fs->open(dir, temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return errno;
    int error = write_all(fs, fd, data, size);
    /* Network file systems report a full disk here. */
    if (fs->close(fd) != 0 && !error)
        error = errno;
    if (!error && fs->rename(dir, temporary, name) != 0)
        error = errno;
    if (error)
        (void)fs->unlink(dir, temporary);
    return error;
}
