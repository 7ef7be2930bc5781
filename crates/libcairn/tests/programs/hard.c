/* What goes wrong in real programs: forks, attributes, errors of all kinds, and that nothing is left behind. A test runs it. */
#include <cairn.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(holds)                                                                        \
    do {                                                                                     \
        if (!(holds)) {                                                                      \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #holds, cairn_last_error()); \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

static void put(cairn_volume *volume, const char *path, const char *text) {
    cairn_file *file;
    EXPECT(cairn_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC, 0666, &file) == 0);
    EXPECT(cairn_pwrite(file, text, strlen(text), 0) == (ssize_t)strlen(text));
    EXPECT(cairn_close(file) == 0);
}

static int is(cairn_volume *volume, const char *path, const char *text) {
    cairn_file *file;
    char found[100];
    ssize_t length;
    EXPECT(cairn_open(volume, path, O_RDONLY, 0, &file) == 0);
    length = cairn_pread(file, found, sizeof found, 0);
    EXPECT(cairn_close(file) == 0);
    return length == (ssize_t)strlen(text) && memcmp(found, text, strlen(text)) == 0;
}

static void child_works(cairn_volume *volume, cairn_file *inherited, cairn_dir *listing) {
    struct cairn_dirent entry;
    char byte;
    EXPECT(cairn_pwrite(inherited, "child", 5, 0) == -EBADF);
    EXPECT(strstr(cairn_last_error(), "before this one was forked off; open it again") != NULL);
    EXPECT(cairn_pread(inherited, &byte, 1, 0) == -EBADF);
    EXPECT(cairn_close(inherited) == -EBADF);
    EXPECT(cairn_readdir(listing, &entry) == -EBADF);
    EXPECT(cairn_closedir(listing) == 0);
    EXPECT(is(volume, "/hard/before", "before"));
    put(volume, "/hard/child", "of the child");
    EXPECT(cairn_disconnect(volume) == 0);
    _exit(0);
}

static void forks(cairn_volume *volume) {
    cairn_file *file;
    cairn_dir *listing;
    int status;
    pid_t child;
    put(volume, "/hard/before", "before");
    EXPECT(cairn_open(volume, "/hard/open", O_RDWR | O_CREAT, 0666, &file) == 0);
    EXPECT(cairn_pwrite(file, "parent", 6, 0) == 6);
    EXPECT(cairn_opendir(volume, "/hard", &listing) == 0);
    for (int i = 0; i < 3; i++) {
        child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            child_works(volume, file, listing);
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        /* The parent's session and what it had open go on. */
        EXPECT(cairn_pwrite(file, "PARENT", 6, 6 * (uint64_t)i) == 6);
        EXPECT(is(volume, "/hard/child", "of the child"));
        EXPECT(cairn_unlink(volume, "/hard/child") == 0);
    }
    /* A child that only exits, with all handlers, neither hangs nor writes. */
    child = fork();
    if (child == 0)
        exit(0);
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(cairn_close(file) == 0);
    EXPECT(cairn_closedir(listing) == 0);
    EXPECT(is(volume, "/hard/open", "PARENTPARENTPARENT"));
}

static void attributes(cairn_volume *volume) {
    struct cairn_stat found;
    char value[10], names[100], target[3];
    put(volume, "/hard/f", "0123456789");
    EXPECT(cairn_chmod(volume, "/hard/f", 0600) == 0);
    EXPECT(cairn_utimens(volume, "/hard/f", CAIRN_TIME_OMIT, -1500000000) == 0);
    EXPECT(cairn_truncate(volume, "/hard/f", 5) == 0);
    EXPECT(cairn_utimens(volume, "/hard/f", 7, -1500000000) == 0);
    EXPECT(cairn_stat(volume, "/hard/f", &found) == 0);
    EXPECT((found.mode & 07777) == 0600 && found.size == 5 && found.mtime_ns == -1500000000 && found.atime_ns == 7);
    EXPECT(cairn_chown(volume, "/hard/f", getuid(), (gid_t)-1) == 0);
    EXPECT(cairn_setxattr(volume, "/hard/f", "user.a", "value", 5, 0) == 0);
    EXPECT(cairn_getxattr(volume, "/hard/f", "user.a", NULL, 0) == 5);
    EXPECT(cairn_getxattr(volume, "/hard/f", "user.a", value, 4) == -ERANGE);
    EXPECT(cairn_getxattr(volume, "/hard/f", "user.a", value, 10) == 5 && memcmp(value, "value", 5) == 0);
    EXPECT(cairn_listxattr(volume, "/hard/f", names, 100) == 7 && strcmp(names, "user.a") == 0);
    EXPECT(cairn_removexattr(volume, "/hard/f", "user.a") == 0);
    EXPECT(cairn_getxattr(volume, "/hard/f", "user.a", value, 10) == -ENODATA);
    EXPECT(cairn_symlink(volume, "f", "/hard/l") == 0);
    EXPECT(cairn_lstat(volume, "/hard/l", &found) == 0 && S_ISLNK(found.mode));
    EXPECT(cairn_readlink(volume, "/hard/l", target, 3) == 1 && target[0] == 'f');
    EXPECT(is(volume, "/hard/l", "01234"));
    put(volume, "/hard/l", "through");
    EXPECT(is(volume, "/hard/f", "through"));
    EXPECT(cairn_link(volume, "/hard/f", "/hard/f2") == 0);
    EXPECT(cairn_stat(volume, "/hard/f2", &found) == 0 && found.nlink == 2);
}

static void refusals(cairn_volume *volume) {
    cairn_file *file;
    cairn_dir *dir;
    struct cairn_stat found;
    char long_name[300];
    memset(long_name, 'x', sizeof long_name);
    long_name[0] = '/';
    long_name[299] = 0;
    EXPECT(cairn_mkdir(volume, "/hard", 0755) == -EEXIST);
    EXPECT(cairn_mkdirs(volume, "/hard", 0755) == 0);
    EXPECT(cairn_mkdirs(volume, "/hard/f/x", 0755) == -ENOTDIR);
    EXPECT(cairn_rmdir(volume, "/hard") == -ENOTEMPTY);
    EXPECT(cairn_rmdir(volume, "/hard/f") == -ENOTDIR);
    EXPECT(cairn_unlink(volume, "/hard") == -EISDIR);
    EXPECT(cairn_unlink(volume, "/") == -EBUSY);
    EXPECT(cairn_stat(volume, "/hard/f/x", &found) == -ENOTDIR);
    EXPECT(cairn_stat(volume, "hard", &found) == -EINVAL);
    EXPECT(cairn_stat(volume, long_name, &found) == -ENAMETOOLONG);
    EXPECT(cairn_open(volume, "/hard", O_RDONLY, 0, &file) == -EISDIR && file == NULL);
    EXPECT(cairn_open(volume, "/hard/new", O_RDONLY, 0, &file) == -ENOENT);
    EXPECT(strncmp(cairn_last_error(), "/hard/new: ", 11) == 0);
    EXPECT(cairn_open(volume, "/hard/f", O_WRONLY | O_CREAT | O_EXCL, 0644, &file) == -EEXIST);
    EXPECT(cairn_open(volume, "/hard/l", O_RDONLY | O_NOFOLLOW, 0, &file) == -ELOOP);
    EXPECT(cairn_opendir(volume, "/hard/f", &dir) == -ENOTDIR);
    EXPECT(cairn_rename(volume, "/hard/f", "/hard/open", CAIRN_RENAME_NOREPLACE) == -EEXIST);
    EXPECT(cairn_rename(volume, "/hard/f", "/none/f", 0) == -ENOENT);
    EXPECT(cairn_rename(volume, "/hard", "/hard/f/in", 0) == -ENOTDIR);
    EXPECT(cairn_rename(volume, "/hard/f", "/hard/open", CAIRN_RENAME_EXCHANGE) == 0);
    EXPECT(is(volume, "/hard/open", "through"));
    EXPECT(cairn_rename(volume, "/hard/f", "/hard/open", 77) == -EINVAL);
    EXPECT(cairn_open(volume, "/hard/f", O_RDONLY, 0, &file) == 0);
    EXPECT(cairn_pwrite(file, "x", 1, 0) == -EBADF);
    EXPECT(cairn_ftruncate(file, 0) == -EBADF);
    /* A file that is removed while it is open lives on. */
    EXPECT(cairn_unlink(volume, "/hard/f") == 0);
    EXPECT(cairn_pread(file, long_name, 6, 0) == 6 && memcmp(long_name, "PARENT", 6) == 0);
    EXPECT(cairn_close(file) == 0);
}

static void who_only_reads(const char *cluster) {
    struct cairn_options options = {.size = sizeof options, .flags = CAIRN_READ_ONLY, .timeout_ms = 20000};
    cairn_volume *volume;
    EXPECT(cairn_connect(cluster, NULL, &options, &volume) == 0);
    EXPECT(cairn_mkdir(volume, "/hard/no", 0755) == -EROFS);
    EXPECT(is(volume, "/hard/open", "through"));
    EXPECT(cairn_disconnect(volume) == 0);
    EXPECT(cairn_connect(cluster, "no-such-volume", &options, &volume) == -ENOENT && volume == NULL);
    EXPECT(strstr(cairn_last_error(), "no-such-volume") != NULL);
}

int main(int argc, char **argv) {
    cairn_volume *volume;
    EXPECT(argc == 2);
    EXPECT(cairn_connect(argv[1], NULL, NULL, &volume) == 0);
    EXPECT(cairn_mkdir(volume, "/hard", 0777) == 0);
    forks(volume);
    attributes(volume);
    refusals(volume);
    EXPECT(cairn_sync(volume) == 0);
    EXPECT(cairn_disconnect(volume) == 0);
    who_only_reads(argv[1]);
    puts("done");
    return 0;
}
