/* How long tables and images live: life SCRATCH-DIR. Prints the line of an expectation that fails. */
#define _POSIX_C_SOURCE 200809L
#include <ferrofs.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(what)                                                        \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf (stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);     \
            exit (1);                                                       \
        }                                                                   \
    } while (0)

#define FILE_BYTES (4 << 20)
#define ROUNDS 20

static ferrofs_error *error;
static char *buffer;
static pthread_t caller;

struct memory {
    char *bytes;
    size_t length;
    int closed;
    /* Calls of pread after close. */
    int late;
    /* What pread answers if it is not 0. */
    int answer;
};

static void pause_ms (int ms)
{
    struct timespec pause = {0, 0};

    pause.tv_nsec = ms * 1000000L;
    nanosleep (&pause, NULL);
}

static int64_t read_memory (void *ctx, void *target, size_t count, uint64_t offset)
{
    struct memory *memory = (struct memory *) ctx;

    /* Workers are slow, so that they still read when the caller has failed. */
    if (!pthread_equal (pthread_self (), caller))
        pause_ms (5);
    if (__atomic_load_n (&memory->closed, __ATOMIC_SEQ_CST))
        __atomic_add_fetch (&memory->late, 1, __ATOMIC_SEQ_CST);
    if (memory->answer)
        return memory->answer;
    if (offset >= memory->length)
        return 0;
    if (count > memory->length - offset)
        count = (size_t) (memory->length - offset);
    memcpy (target, memory->bytes + offset, count);
    return (int64_t) count;
}

static uint64_t length_of_memory (void *ctx)
{
    return ((struct memory *) ctx)->length;
}

static void close_memory (void *ctx)
{
    __atomic_add_fetch (&((struct memory *) ctx)->closed, 1, __ATOMIC_SEQ_CST);
}

static struct ferrofs_io table_of (struct memory *memory)
{
    struct ferrofs_io io = FERROFS_INIT (struct ferrofs_io);

    io.ctx = memory;
    io.pread = read_memory;
    io.length = length_of_memory;
    io.close = close_memory;
    return io;
}

/* Builds an image with one long file, /big, that is compressed in many clusters. */
static void build (const char *scratch, char *output)
{
    struct ferrofs_build_options options = FERROFS_INIT (struct ferrofs_build_options);
    char tree[512], name[600];
    uint32_t state = 1;
    size_t at;
    FILE *file;

    sprintf (tree, "%s/tree", scratch);
    sprintf (name, "%s/big", tree);
    sprintf (output, "%s/big.erofs", scratch);
    EXPECT (mkdir (tree, 0755) == 0 && chmod (tree, 0755) == 0);
    for (at = 0; at < FILE_BYTES; at++) {
        state = state * 1103515245u + 12345u;
        buffer[at] = (char) (at % 3 ? 'a' : 'a' + (state >> 16) % 16);
    }
    file = fopen (name, "wb");
    EXPECT (file && fwrite (buffer, 1, FILE_BYTES, file) == FILE_BYTES && fclose (file) == 0);
    options.compression = "lz4";
    options.pcluster_bytes = 16384;
    EXPECT (ferrofs_build (tree, output, &options, NULL, &error) == 0);
}

static void load (struct memory *memory, const char *path)
{
    FILE *file = fopen (path, "rb");

    memset (memory, 0, sizeof *memory);
    EXPECT (file && fseek (file, 0, SEEK_END) == 0);
    memory->length = (size_t) ftell (file);
    rewind (file);
    memory->bytes = (char *) malloc (memory->length);
    EXPECT (memory->bytes && fread (memory->bytes, 1, memory->length, file) == memory->length);
    fclose (file);
}

/* A read of a damaged image fails while workers still decode what is behind. */
static void no_read_follows_the_last_handle (const char *path)
{
    struct memory memory;
    struct ferrofs_io io;
    ferrofs_image *image;
    ferrofs_inode *inode;
    size_t done;
    int round, code;

    load (&memory, path);
    memset (memory.bytes + memory.length / 4, 0xff, 64);
    for (round = 0; round < ROUNDS; round++) {
        memory.closed = memory.late = 0;
        io = table_of (&memory);
        EXPECT (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error) == 0);
        EXPECT (ferrofs_lookup (image, "/big", &inode, &error) == 0);
        code = ferrofs_pread (inode, buffer, FILE_BYTES, 0, &done, &error);
        EXPECT (code == FERROFS_E_CORRUPT);
        ferrofs_error_free (error);
        ferrofs_close (image);
        EXPECT (__atomic_load_n (&memory.closed, __ATOMIC_SEQ_CST) == 0);
        ferrofs_inode_free (inode);
        EXPECT (__atomic_load_n (&memory.closed, __ATOMIC_SEQ_CST) == 1);
        pause_ms (10);
        EXPECT (__atomic_load_n (&memory.late, __ATOMIC_SEQ_CST) == 0);
    }
    free (memory.bytes);
}

static int open_descriptors (void)
{
    DIR *dir = opendir ("/proc/self/fd");
    int count = 0;

    EXPECT (dir);
    while (readdir (dir))
        count++;
    closedir (dir);
    return count;
}

static void read_some_images (const char *path, int count)
{
    ferrofs_image *image;
    ferrofs_inode *inode;
    size_t done;
    int at, before = open_descriptors ();

    for (at = 0; at < count; at++) {
        EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
        EXPECT (ferrofs_lookup (image, "/big", &inode, &error) == 0);
        EXPECT (ferrofs_pread (inode, buffer, FILE_BYTES, 0, &done, &error) == 0 && done == FILE_BYTES);
        ferrofs_inode_free (inode);
        ferrofs_close (image);
    }
    /* A worker may still have a part of the last one. */
    for (at = 0; at < 500 && open_descriptors () > before; at++)
        pause_ms (10);
    EXPECT (open_descriptors () <= before);
}

/* The child has none of the workers of its parent. */
static void a_child_keeps_no_image_open (const char *path)
{
    int status;
    pid_t child;

    read_some_images (path, 4);
    child = fork ();
    EXPECT (child >= 0);
    if (!child) {
        alarm (60);
        read_some_images (path, 10);
        _exit (0);
    }
    EXPECT (waitpid (child, &status, 0) == child && WIFEXITED (status) && WEXITSTATUS (status) == 0);
    read_some_images (path, 4);
}

/* Only a name that is missing is not found. */
static void a_source_that_fails_is_no_missing_name (const char *path)
{
    struct memory memory;
    struct ferrofs_io io;
    ferrofs_image *image;
    ferrofs_inode *inode;
    int code;

    load (&memory, path);
    memory.answer = -ENOENT;
    io = table_of (&memory);
    code = ferrofs_open_io (&io, NULL, 0, NULL, &image, &error);
    EXPECT (code == FERROFS_E_IO && ferrofs_error_errno (error) == ENOENT);
    ferrofs_error_free (error);
    EXPECT (memory.closed == 1);
    memory.answer = 0;
    EXPECT (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error) == 0);
    memory.answer = -ENOENT;
    code = ferrofs_lookup (image, "/big", &inode, &error);
    if (code == 0)
        ferrofs_inode_free (inode);
    else {
        EXPECT (code == FERROFS_E_IO && ferrofs_error_errno (error) == ENOENT);
        ferrofs_error_free (error);
    }
    memory.answer = 0;
    EXPECT (ferrofs_lookup (image, "/none", &inode, &error) == FERROFS_E_NOT_FOUND);
    ferrofs_error_free (error);
    ferrofs_close (image);
    free (memory.bytes);
}

/* Opening a FIFO waits for a writer. */
static void what_is_no_file_is_refused (const char *scratch)
{
    char fifo[512];
    ferrofs_image *image;

    sprintf (fifo, "%s/fifo", scratch);
    EXPECT (mkfifo (fifo, 0600) == 0);
    alarm (60);
    EXPECT (ferrofs_open (fifo, NULL, &image, &error) == FERROFS_E_INVALID);
    EXPECT (strcmp (ferrofs_error_path (error, NULL), fifo) == 0 && strstr (ferrofs_error_message (error), fifo));
    ferrofs_error_free (error);
    EXPECT (ferrofs_open (scratch, NULL, &image, &error) == FERROFS_E_INVALID);
    EXPECT (ferrofs_error_errno (error) == EISDIR);
    ferrofs_error_free (error);
    alarm (0);
}

/* A destination that exists keeps its mode, unless the caller asks for that of the image. */
static void a_destination_keeps_its_metadata (const char *path, const char *scratch)
{
    struct ferrofs_extract_options options = FERROFS_INIT (struct ferrofs_extract_options);
    char existing[512], made[512];
    ferrofs_image *image;
    struct stat st;
    time_t now = time (NULL);

    sprintf (existing, "%s/existing", scratch);
    sprintf (made, "%s/made", scratch);
    EXPECT (mkdir (existing, 0700) == 0 && chmod (existing, 01730) == 0);
    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
    options.flags = FERROFS_EXTRACT_REPLACE;
    EXPECT (ferrofs_extract (image, existing, &options, NULL, &error) == 0);
    EXPECT (stat (existing, &st) == 0 && (st.st_mode & 07777) == 01730 && st.st_mtime >= now - 60);
    options.flags |= FERROFS_EXTRACT_DESTINATION_METADATA;
    EXPECT (ferrofs_extract (image, existing, &options, NULL, &error) == 0);
    EXPECT (stat (existing, &st) == 0 && (st.st_mode & 07777) == 0755);
    options.flags = 0;
    EXPECT (ferrofs_extract (image, made, &options, NULL, &error) == 0);
    EXPECT (stat (made, &st) == 0 && (st.st_mode & 07777) == 0755);
    ferrofs_close (image);
}

struct counted {
    uint64_t entries;
    uint64_t stops_at;
};

static int count_entries (void *ctx, uint64_t entries, uint64_t bytes)
{
    struct counted *counted = (struct counted *) ctx;

    (void) bytes;
    counted->entries = entries;
    return entries == counted->stops_at;
}

/* Entries are files, too, and those of an archive. */
static void a_build_tells_its_entries (const char *scratch, const char *archive)
{
    struct ferrofs_build_options options = FERROFS_INIT (struct ferrofs_build_options);
    struct counted counted = {0, 0};
    char tree[512], name[600], output[512];
    const char *sources[2];
    int number, source;
    FILE *file;

    sprintf (tree, "%s/many", scratch);
    sprintf (output, "%s/many.erofs", scratch);
    EXPECT (mkdir (tree, 0755) == 0);
    for (number = 0; number < 50; number++) {
        sprintf (name, "%s/%d", tree, number);
        file = fopen (name, "wb");
        EXPECT (file && fclose (file) == 0);
    }
    sources[0] = tree;
    sources[1] = archive;
    options.progress = count_entries;
    options.ctx = &counted;
    options.flags = FERROFS_BUILD_REPLACE;
    for (source = 0; source < 2; source++) {
        counted.entries = 0;
        counted.stops_at = UINT64_MAX;
        EXPECT (ferrofs_build (sources[source], output, &options, NULL, &error) == 0);
        EXPECT (source == 0 ? counted.entries == 50 : counted.entries > 3);
        counted.stops_at = 3;
        EXPECT (ferrofs_build (sources[source], output, &options, NULL, &error) == FERROFS_E_CANCELLED);
        EXPECT (counted.entries == 3);
        ferrofs_error_free (error);
    }
}

int main (int argc, char **argv)
{
    char path[512];

    EXPECT (argc == 3);
    caller = pthread_self ();
    buffer = (char *) malloc (FILE_BYTES);
    EXPECT (buffer);
    build (argv[1], path);
    no_read_follows_the_last_handle (path);
    a_child_keeps_no_image_open (path);
    a_source_that_fails_is_no_missing_name (path);
    what_is_no_file_is_refused (argv[1]);
    a_destination_keeps_its_metadata (path, argv[1]);
    a_build_tells_its_entries (argv[1], argv[2]);
    free (buffer);
    return 0;
}
