/*
 * A tour of libcairn: writes, reads back, lists, renames, appends from two threads, and looks at an error.
 *
 *     cc -Wall -I include -o tour tour.c -lcairn -lpthread && ./tour 127.0.0.1:7400
 */
#include <cairn.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Ends the program with what the library has to say. */
static ssize_t check(ssize_t outcome, const char *doing) {
    if (outcome < 0) {
        fprintf(stderr, "%s: %s\n", doing, cairn_last_error());
        exit(1);
    }
    return outcome;
}

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "this should hold: %s\n", what);
        exit(1);
    }
}

enum { LINES = 50, LINE = 16, BIG = 10 * 1000 * 1000 };

struct writer {
    cairn_volume *volume;
    int number;
};

/* Lines of several threads go behind each other, each of them whole. */
static void *append_lines(void *argument) {
    struct writer *writer = argument;
    cairn_file *file;
    char line[LINE + 1];
    check(cairn_open(writer->volume, "/tour/log", O_WRONLY | O_APPEND | O_CREAT, 0644, &file), "open the log");
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "thread %d line%2d\n", writer->number, i);
        check(cairn_pwrite(file, line, LINE, 0), "append");
    }
    check(cairn_close(file), "close the log");
    return NULL;
}

static void two_threads(cairn_volume *volume) {
    pthread_t threads[2];
    struct writer writers[2] = {{volume, 1}, {volume, 2}};
    static char log[2 * LINES * LINE + 1];
    int seen[2] = {0, 0};
    cairn_file *file;
    for (int i = 0; i < 2; i++)
        expect(pthread_create(&threads[i], NULL, append_lines, &writers[i]) == 0, "threads can be made");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    check(cairn_open(volume, "/tour/log", O_RDONLY, 0, &file), "open the log");
    expect(check(cairn_pread(file, log, sizeof log, 0), "read the log") == 2 * LINES * LINE, "no line is lost");
    for (int i = 0; i < 2 * LINES; i++) {
        int number, line;
        expect(sscanf(log + i * LINE, "thread %d line%d\n", &number, &line) == 2, "every line is whole");
        expect(number == 1 || number == 2, "it is of one of the threads");
        expect(line == seen[number - 1]++, "lines of a thread are in order");
    }
    check(cairn_close(file), "close");
}

int main(int argc, char **argv) {
    cairn_volume *volume;
    cairn_file *file;
    cairn_dir *dir;
    struct cairn_stat found;
    struct cairn_dirent entry;
    struct cairn_space space;
    char *big = malloc(BIG), *again = malloc(BIG + 1);
    int entries = 0;
    expect(big && again, "there is memory");

    check(cairn_connect(argc > 1 ? argv[1] : NULL, "default", NULL, &volume), "connect");
    check(cairn_mkdirs(volume, "/tour/a/b", 0755), "mkdirs");

    /* Write, and read back. */
    for (int i = 0; i < BIG; i++)
        big[i] = (char)(i * 7 + i / 1000);
    check(cairn_open(volume, "/tour/big", O_RDWR | O_CREAT | O_EXCL, 0640, &file), "create");
    expect(check(cairn_pwrite(file, big, BIG, 0), "write") == BIG, "all is written");
    check(cairn_fsync(file), "fsync");
    expect(check(cairn_pread(file, again, BIG + 1, 0), "read") == BIG, "the file is as long as what was written");
    expect(memcmp(big, again, BIG) == 0, "it is what was written");
    expect(check(cairn_pread(file, again, 10, BIG - 4), "read the end") == 4, "a read ends where the file ends");
    check(cairn_ftruncate(file, 1000), "ftruncate");
    check(cairn_fstat(file, &found), "fstat");
    expect(found.size == 1000 && S_ISREG(found.mode), "it was cut");
    check(cairn_close(file), "close");

    /* List: three names, in no order that is promised. */
    check(cairn_symlink(volume, "big", "/tour/link"), "symlink");
    check(cairn_opendir(volume, "/tour", &dir), "opendir");
    while (check(cairn_readdir(dir, &entry), "readdir")) {
        printf("%-5s %o %llu\n", entry.name, entry.stat.mode, (unsigned long long)entry.stat.size);
        expect(entry.has_stat && entry.type == (entry.stat.mode & S_IFMT), "what is listed is known");
        entries++;
    }
    check(cairn_closedir(dir), "closedir");
    expect(entries == 3, "a, big and link are listed");

    /* Rename, and what is not there any more. */
    check(cairn_rename(volume, "/tour/big", "/tour/a/b/moved", 0), "rename");
    check(cairn_stat(volume, "/tour/a/b/moved", &found), "stat");
    expect(found.size == 1000, "it is the same file");
    expect(cairn_stat(volume, "/tour/big", &found) == -ENOENT, "the old name is gone");
    printf("%s\n", cairn_last_error());
    expect(cairn_open(volume, "/tour/link", O_RDONLY, 0, &file) == -ENOENT && file == NULL, "the link leads nowhere");

    two_threads(volume);
    check(cairn_statfs(volume, &space), "statfs");
    expect(space.bytes_free > 0, "there is room");
    check(cairn_disconnect(volume), "disconnect");
    free(big);
    free(again);
    puts("done");
    return 0;
}
