/* What Intel ISA-L does on this machine, measured as `cairn bench erasure` measures: JSON lines with CPU seconds a GB of
 * data. Not part of the product. compare.sh builds and runs it.
 *
 * usage: ec K M SHARD_BYTES cache|memory SECONDS */
#define _GNU_SOURCE
#include <isa-l/erasure_code.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMORY_BYTES (256UL << 20)

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static unsigned char *shard(size_t bytes) {
    unsigned char *p = aligned_alloc(4096, (bytes + 4095) & ~4095UL);
    if (!p) exit(2);
    memset(p, rand(), bytes); /* the rate does not depend on what is in it */
    return p;
}

/* The coding rows of the work: those of the parities, or those of the lost data from the survivors. */
static int coding(int k, int m, const char *work, unsigned char *rows) {
    unsigned char generator[32 * 32], kept[32 * 32], inverse[32 * 32];
    gf_gen_cauchy1_matrix(generator, k + m, k);
    if (!strcmp(work, "encode")) {
        memcpy(rows, generator + k * k, (size_t)m * k);
        return m;
    }
    int lost = !strcmp(work, "decode-1") ? 1 : m;
    memcpy(kept, generator + lost * k, (size_t)k * k);
    if (gf_invert_matrix(kept, inverse, k)) exit(2);
    memcpy(rows, inverse, (size_t)lost * k);
    return lost;
}

/* One line: at least `seconds` of the work. */
static void measure(int k, int m, size_t bytes, size_t stripes, unsigned char **shards, const char *work, double seconds) {
    unsigned char rows[32 * 32], *tables = malloc(32 * 32 * 32);
    int outputs = coding(k, m, work, rows);
    ec_init_tables(k, outputs, rows, tables);
    size_t batch = (1UL << 20) / (bytes * k), done = 0, next = 0;
    if (batch < 1) batch = 1;
    double started = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), took;
    do {
        for (size_t i = 0; i < batch; i++) {
            unsigned char **stripe = shards + next * (k + m);
            ec_encode_data((int)bytes, k, outputs, tables, stripe, stripe + k);
            next = (next + 1) % stripes;
            done += bytes * k;
        }
        took = now(CLOCK_MONOTONIC) - started;
    } while (took < seconds);
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"scheme\":\"rs-%d-%d\",\"kernel\":\"isa-l\",\"work\":\"%s\",\"gb_per_second\":%.3f,\"cpu_s_per_gb\":%.5f}\n", k, m, work,
           done / took / 1e9, cpu / done * 1e9);
    free(tables);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: ec K M SHARD_BYTES cache|memory SECONDS\n");
        return 64;
    }
    int k = atoi(argv[1]), m = atoi(argv[2]);
    size_t bytes = strtoul(argv[3], NULL, 10);
    double seconds = atof(argv[5]);
    if (k < 1 || m < 1 || k + m > 32 || bytes < 64) return 64;
    size_t stripes = !strcmp(argv[4], "memory") ? MEMORY_BYTES / (bytes * (k + m)) : 1;
    if (stripes < 1) stripes = 1;
    unsigned char **shards = malloc(stripes * (k + m) * sizeof *shards);
    for (size_t i = 0; i < stripes * (k + m); i++) shards[i] = shard(bytes);
    const char *works[] = {"encode", "decode-1", "decode-m"};
    for (int w = 0; w < 3; w++) measure(k, m, bytes, stripes, shards, works[w], seconds);
    return 0;
}
