/* Calls every function of the library, with right and wrong arguments: api IMAGE ATTRIBUTES SCRATCH-DIR
 * IMAGE is tests/data/demo.erofs, and ATTRIBUTES is an image with extended attributes. Prints the line of an
 * expectation that fails. */
#include <ferrofs.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                                        \
    do {                                                                    \
        if (!(what)) {                                                      \
            fprintf (stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);     \
            exit (1);                                                       \
        }                                                                   \
    } while (0)

static ferrofs_error *error;

/* The code of a call that fails as it should. */
#define code_of(call) code_at ((call), __LINE__)

static int code_at (int returned, int line)
{
    int code;

    if (returned >= 0 || !error)
        fprintf (stderr, "line %d: returned %d\n", line, returned);
    EXPECT (returned < 0 && error);
    code = ferrofs_error_code (error);
    EXPECT (code == returned && ferrofs_error_errno (error) > 0 && *ferrofs_error_message (error));
    ferrofs_error_free (error);
    error = NULL;
    return code;
}

struct memory {
    char *bytes;
    size_t length;
    int closed;
    int fails;
};

static int64_t read_memory (void *ctx, void *buffer, size_t count, uint64_t offset)
{
    struct memory *memory = (struct memory *) ctx;

    if (memory->fails)
        return -EACCES;
    if (offset >= memory->length)
        return 0;
    if (count > memory->length - offset)
        count = (size_t) (memory->length - offset);
    memcpy (buffer, memory->bytes + offset, count);
    return (int64_t) count;
}

static uint64_t length_of_memory (void *ctx)
{
    return ((struct memory *) ctx)->length;
}

static void close_memory (void *ctx)
{
    ((struct memory *) ctx)->closed++;
}

static void load (struct memory *memory, const char *path)
{
    FILE *file = fopen (path, "rb");

    EXPECT (file && fseek (file, 0, SEEK_END) == 0);
    memory->length = (size_t) ftell (file);
    rewind (file);
    memory->bytes = (char *) malloc (memory->length);
    EXPECT (memory->bytes && fread (memory->bytes, 1, memory->length, file) == memory->length);
    fclose (file);
}

static void open_in_all_ways (const char *path)
{
    struct ferrofs_open_options options = FERROFS_INIT (struct ferrofs_open_options);
    struct ferrofs_image_info info = FERROFS_INIT (struct ferrofs_image_info);
    struct memory memory = {NULL, 0, 0, 0};
    struct ferrofs_io io = FERROFS_INIT (struct ferrofs_io);
    struct { struct ferrofs_open_options known; uint64_t later; } longer;
    ferrofs_image *image = NULL;

    EXPECT (strncmp (ferrofs_version (), "0.1", 3) == 0);
    EXPECT (code_of (ferrofs_open ("/nonexistent", NULL, &image, &error)) == FERROFS_E_NOT_FOUND);
    EXPECT (code_of (ferrofs_open (NULL, NULL, &image, &error)) == FERROFS_E_INVALID);
    EXPECT (code_of (ferrofs_open (path, NULL, NULL, &error)) == FERROFS_E_INVALID);
    EXPECT (ferrofs_open ("/nonexistent", NULL, &image, NULL) == FERROFS_E_NOT_FOUND);
    EXPECT (code_of (ferrofs_open (__FILE__, NULL, &image, &error)) != FERROFS_E_INTERNAL);
    options.flags = 1u << 31;
    EXPECT (code_of (ferrofs_open (path, &options, &image, &error)) == FERROFS_E_UNSUPPORTED);
    options.flags = FERROFS_OPEN_IGNORE_CHECKSUM;
    options.memory_bytes = 1;
    EXPECT (code_of (ferrofs_open (path, &options, &image, &error)) == FERROFS_E_LIMIT);
    options.memory_bytes = 64 << 20;
    EXPECT (ferrofs_open (path, &options, &image, &error) == 0 && image);
    info.size = 3;
    EXPECT (code_of (ferrofs_image_get_info (image, &info, &error)) == FERROFS_E_INVALID);
    /* An older program has a shorter structure. */
    info.size = offsetof (struct ferrofs_image_info, blocks);
    info.blocks = 77;
    EXPECT (ferrofs_image_get_info (image, &info, &error) == 0 && info.inodes > 1 && info.blocks == 77);
    info.size = sizeof info;
    EXPECT (ferrofs_image_get_info (image, &info, &error) == 0 && info.block_bytes == 4096 && info.blocks != 77);
    ferrofs_close (image);
    /* A newer program has a longer one, which may not request anything that is unknown. */
    memset (&longer, 0, sizeof longer);
    longer.known.size = sizeof longer;
    EXPECT (ferrofs_open (path, &longer.known, &image, &error) == 0);
    ferrofs_close (image);
    longer.later = 1;
    EXPECT (code_of (ferrofs_open (path, &longer.known, &image, &error)) == FERROFS_E_UNSUPPORTED);

    load (&memory, path);
    io.ctx = &memory;
    io.pread = read_memory;
    io.length = length_of_memory;
    io.close = close_memory;
    EXPECT (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error) == 0 && memory.closed == 0);
    EXPECT (ferrofs_check (image, NULL, NULL, &error) == 0);
    ferrofs_close (image);
    EXPECT (memory.closed == 1);
    memory.fails = 1;
    EXPECT (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error) == FERROFS_E_IO);
    EXPECT (ferrofs_error_errno (error) == EACCES && code_of (FERROFS_E_IO) == FERROFS_E_IO);
    EXPECT (memory.closed == 2);
    io.pread = NULL;
    EXPECT (code_of (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error)) == FERROFS_E_INVALID);
    EXPECT (memory.closed == 3);
    free (memory.bytes);
    ferrofs_close (NULL);
    ferrofs_error_free (NULL);
}

/* However ferrofs_open_io ends, each table is closed once. */
static void tables_are_closed (const char *path)
{
    struct ferrofs_open_options options = FERROFS_INIT (struct ferrofs_open_options);
    struct memory memory = {NULL, 0, 0, 0}, second = {NULL, 0, 0, 0};
    struct ferrofs_io io = FERROFS_INIT (struct ferrofs_io), other;
    const struct ferrofs_io *devices[2];
    struct { struct ferrofs_io known; uint64_t later; } longer;
    ferrofs_image *image = NULL;

    load (&memory, path);
    io.ctx = &memory;
    io.pread = read_memory;
    io.length = length_of_memory;
    io.close = close_memory;
    other = io;
    other.ctx = &second;
    second = memory;
    devices[0] = &other;
    devices[1] = NULL;
#define CLOSED(call, code, first, devices_too)                                               \
    do {                                                                                     \
        memory.closed = second.closed = 0;                                                   \
        EXPECT (code_of (call) == (code));                                                   \
        EXPECT (memory.closed == (first) && second.closed == (devices_too) && !image);       \
    } while (0)
    CLOSED (ferrofs_open_io (&io, NULL, 0, NULL, NULL, &error), FERROFS_E_INVALID, 1, 0);
    CLOSED (ferrofs_open_io (&io, NULL, 1, NULL, &image, &error), FERROFS_E_INVALID, 1, 0);
    CLOSED (ferrofs_open_io (NULL, devices, 1, NULL, &image, &error), FERROFS_E_INVALID, 0, 1);
    CLOSED (ferrofs_open_io (&io, devices, 2, NULL, &image, &error), FERROFS_E_INVALID, 1, 1);
    CLOSED (ferrofs_open_io (&io, devices, 1, NULL, &image, &error), FERROFS_E_INVALID, 1, 1);
    options.flags = 1u << 31;
    CLOSED (ferrofs_open_io (&io, devices, 1, &options, &image, &error), FERROFS_E_UNSUPPORTED, 1, 1);
    options.flags = 0;
    options.offset = 512;
    CLOSED (ferrofs_open_io (&io, devices, 1, &options, &image, &error), FERROFS_E_INVALID, 1, 1);
    options.size = 1;
    CLOSED (ferrofs_open_io (&io, devices, 1, &options, &image, &error), FERROFS_E_INVALID, 1, 1);
    /* A table of a newer header with a member that this library does not know. */
    longer.known = io;
    longer.known.size = sizeof longer;
    longer.later = 1;
    CLOSED (ferrofs_open_io (&longer.known, devices, 1, NULL, &image, &error), FERROFS_E_UNSUPPORTED, 1, 1);
    io.length = NULL;
    CLOSED (ferrofs_open_io (&io, devices, 1, NULL, &image, &error), FERROFS_E_INVALID, 1, 1);
    /* Nothing of such a table is read. */
    io.size = 1;
    CLOSED (ferrofs_open_io (&io, devices, 1, NULL, &image, &error), FERROFS_E_INVALID, 0, 1);
#undef CLOSED
    free (memory.bytes);
}

/* What an error says of its place, and the numbers of errno.h for inodes of the wrong type. */
static void errors_have_their_place (const char *path)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat), file = FERROFS_INIT (struct ferrofs_stat);
    struct memory memory = {NULL, 0, 0, 0};
    struct ferrofs_io io = FERROFS_INIT (struct ferrofs_io);
    ferrofs_image *image = NULL;
    ferrofs_inode *root = NULL, *link = NULL, *regular = NULL;
    ferrofs_dir *dir = NULL;
    char buffer[64];
    uint64_t number = 0;
    size_t length = 0;

    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
    EXPECT (ferrofs_stat (image, "/no/such", &st, &error) < 0);
    EXPECT (strcmp (ferrofs_error_path (error, &length), "/no/such") == 0 && length == 8);
    EXPECT (ferrofs_error_path (error, NULL) && ferrofs_error_errno (error) == ENOENT);
    EXPECT (!ferrofs_error_nid (error, &number) && !ferrofs_error_offset (error, &number) && number == 0);
    EXPECT (code_of (FERROFS_E_NOT_FOUND) < 0);

    EXPECT (ferrofs_lookup (image, "/", &root, &error) == 0 && ferrofs_inode_stat (root, &st, &error) == 0);
    EXPECT (ferrofs_lookup (image, "/licences/GPL", &regular, &error) == 0);
    EXPECT (ferrofs_lookup_nofollow (image, "/licences/GPL", &link, &error) == 0);
    EXPECT (ferrofs_inode_stat (link, &file, &error) == 0 && (file.mode & 0170000) == 0120000);
    EXPECT (ferrofs_readlink (link, buffer, sizeof buffer, &length, &error) == 0);
    EXPECT (strcmp (buffer, "GPL-3") == 0 && length == 5);
    EXPECT (code_of (ferrofs_readlink (link, buffer, 5, &length, &error)) == FERROFS_E_RANGE && length == 6);
    EXPECT (ferrofs_inode_stat (regular, &file, &error) == 0 && (file.mode & 0170000) == 0100000);
    EXPECT (code_of (ferrofs_lookup_nofollow (image, "/none", &link, &error)) == FERROFS_E_NOT_FOUND);

    EXPECT (ferrofs_pread (root, buffer, 1, 0, &length, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == EISDIR);
    EXPECT (ferrofs_error_nid (error, NULL) == 1);
    EXPECT (ferrofs_error_nid (error, &number) == 1 && number == st.nid && code_of (FERROFS_E_TYPE) < 0);
    EXPECT (ferrofs_pread (link, buffer, 1, 0, &length, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == EINVAL && code_of (FERROFS_E_TYPE) < 0);
    EXPECT (ferrofs_opendir (regular, &dir, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == ENOTDIR && code_of (FERROFS_E_TYPE) < 0);
    EXPECT (ferrofs_readlink (regular, buffer, 1, &length, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == EINVAL && code_of (FERROFS_E_TYPE) < 0);
    EXPECT (ferrofs_stat (image, "/licences/GPL/below", &st, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == ENOTDIR && code_of (FERROFS_E_TYPE) < 0);
    ferrofs_inode_free (root);
    ferrofs_inode_free (link);
    ferrofs_inode_free (regular);
    ferrofs_close (image);

    load (&memory, path);
    memory.bytes[1024] ^= 1;
    io.ctx = &memory;
    io.pread = read_memory;
    io.length = length_of_memory;
    EXPECT (ferrofs_open_io (&io, NULL, 0, NULL, &image, &error) < 0);
    EXPECT (ferrofs_error_offset (error, NULL) == 1);
    EXPECT (ferrofs_error_offset (error, &number) == 1 && number == 1024 && code_of (FERROFS_E_CORRUPT) < 0);
    free (memory.bytes);
    EXPECT (ferrofs_error_code (NULL) == 0 && !ferrofs_error_nid (NULL, &number));
}

/* Lists and reads every attribute of the entries of the root. */
static void read_attributes (const char *path)
{
    struct ferrofs_dirent entry = FERROFS_INIT (struct ferrofs_dirent);
    ferrofs_image *image = NULL;
    ferrofs_inode *root = NULL, *inode = NULL;
    ferrofs_dir *dir = NULL;
    char names[4096], value[4096];
    size_t needed = 0, length = 0, size = 0, at;
    int attributes = 0;

    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0 && ferrofs_lookup (image, "", &root, &error) == 0);
    EXPECT (ferrofs_opendir (root, &dir, &error) == 0);
    while (ferrofs_readdir (dir, &entry, &error) == 1) {
        EXPECT (ferrofs_inode_by_nid (image, entry.nid, &inode, &error) == 0);
        EXPECT (ferrofs_listxattr (inode, NULL, 0, &needed, &error) == 0);
        EXPECT (ferrofs_listxattr (inode, names, sizeof names, &length, &error) == 0 && length == needed);
        if (length)
            EXPECT (code_of (ferrofs_listxattr (inode, names, length - 1, &needed, &error)) == FERROFS_E_RANGE
                    && needed == length && ferrofs_listxattr (inode, names, length, &length, &error) == 0);
        for (at = 0; at < length; at += strlen (names + at) + 1) {
            attributes++;
            EXPECT (ferrofs_getxattr (inode, names + at, NULL, 0, &needed, &error) == 0);
            EXPECT (ferrofs_getxattr (inode, names + at, value, sizeof value, &size, &error) == 0 && size == needed);
        }
        ferrofs_inode_free (inode);
    }
    EXPECT (attributes > 0);
    ferrofs_closedir (dir);
    ferrofs_inode_free (root);
    ferrofs_close (image);
}

static void read_a_tree (const char *path)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat), same = FERROFS_INIT (struct ferrofs_stat);
    struct ferrofs_dirent entry = FERROFS_INIT (struct ferrofs_dirent);
    ferrofs_image *image = NULL;
    ferrofs_inode *root = NULL, *inode = NULL, *file = NULL;
    ferrofs_dir *dir = NULL;
    char buffer[4096], first[256] = "";
    uint64_t file_bytes = 0;
    size_t done = 7, length = 0;
    int found, count = 0, again = 0;

    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
    EXPECT (ferrofs_lookup (image, "/", &root, &error) == 0 && ferrofs_inode_stat (root, &st, &error) == 0);
    EXPECT ((st.mode & 0170000) == 0040000);
    EXPECT (ferrofs_stat (image, "", &same, &error) == 0 && same.nid == st.nid);
    EXPECT (ferrofs_lstat (image, "/./..//", &same, &error) == 0 && same.nid == st.nid);
    EXPECT (code_of (ferrofs_stat (image, "/no/such", &same, &error)) == FERROFS_E_NOT_FOUND);
    EXPECT (code_of (ferrofs_pread (root, buffer, 1, 0, &done, &error)) == FERROFS_E_TYPE && done == 7);
    EXPECT (code_of (ferrofs_readlink (root, buffer, 1, &length, &error)) == FERROFS_E_TYPE);
    EXPECT (ferrofs_getxattr (root, "user.none", NULL, 0, &length, &error) == FERROFS_E_NOT_FOUND);
    EXPECT (ferrofs_error_errno (error) == ENODATA && code_of (FERROFS_E_NOT_FOUND) < 0);
    EXPECT (code_of (ferrofs_inode_by_nid (image, UINT64_MAX / 2, &inode, &error)) < 0);

    EXPECT (ferrofs_opendir (root, &dir, &error) == 0);
    while ((found = ferrofs_readdir (dir, &entry, &error)) > 0) {
        EXPECT (strlen (entry.name) == entry.name_length && strcmp (entry.name, ".") && strcmp (entry.name, ".."));
        if (!count++)
            strcpy (first, entry.name);
        EXPECT (ferrofs_inode_by_nid (image, entry.nid, &inode, &error) == 0);
        EXPECT (ferrofs_inode_stat (inode, &st, &error) == 0);
        EXPECT (!entry.mode || entry.mode == (st.mode & 0170000));
        if (!file && (st.mode & 0170000) == 0100000 && st.bytes > 2) {
            file = inode;
            file_bytes = st.bytes;
        } else
            ferrofs_inode_free (inode);
    }
    EXPECT (found == 0 && count > 0 && ferrofs_readdir (dir, &entry, &error) == 0);
    ferrofs_rewinddir (dir);
    EXPECT (ferrofs_readdir (dir, &entry, &error) == 1 && strcmp (entry.name, first) == 0);
    while (ferrofs_readdir (dir, &entry, &error) == 1)
        again++;
    EXPECT (again == count - 1);
    /* Handles keep the image open. */
    ferrofs_close (image);
    if (file) {
        EXPECT (code_of (ferrofs_opendir (file, &dir, &error)) == FERROFS_E_TYPE);
        EXPECT (ferrofs_pread (file, buffer, 2, 1, &done, &error) == 0 && done == 2);
        EXPECT (ferrofs_pread (file, buffer, 2, file_bytes - 1, &done, &error) == 0 && done == 1);
        EXPECT (ferrofs_pread (file, buffer, 2, UINT64_MAX, &done, &error) == 0 && done == 0);
        EXPECT (ferrofs_pread (file, NULL, 0, 0, &done, &error) == 0 && done == 0);
        EXPECT (code_of (ferrofs_pread (file, NULL, 1, 0, &done, &error)) == FERROFS_E_INVALID);
    }
    ferrofs_rewinddir (dir);
    EXPECT (ferrofs_readdir (dir, &entry, &error) == 1);
    ferrofs_inode_free (file);
    ferrofs_inode_free (root);
    ferrofs_closedir (dir);
    ferrofs_closedir (NULL);
    ferrofs_inode_free (NULL);
}

static int progress_calls;

static int stop_at_once (void *ctx, uint64_t entries, uint64_t bytes)
{
    (void) entries;
    (void) bytes;
    progress_calls++;
    return ctx ? 1 : 0;
}

static int count_problem (void *ctx, const ferrofs_error *problem)
{
    EXPECT (*ferrofs_error_message (problem));
    ++*(int *) ctx;
    return 0;
}

static void write_file (const char *path, const char *text)
{
    FILE *file = fopen (path, "wb");

    EXPECT (file && fputs (text, file) >= 0 && fclose (file) == 0);
}

/* Builds an image of what an image was extracted to, and reads links and attributes of it. */
static void build_and_extract (const char *path, const char *scratch)
{
    struct ferrofs_build_options options = FERROFS_INIT (struct ferrofs_build_options);
    struct ferrofs_build_summary built = FERROFS_INIT (struct ferrofs_build_summary);
    struct ferrofs_extract_options extracting = FERROFS_INIT (struct ferrofs_extract_options);
    struct ferrofs_extract_summary extracted = FERROFS_INIT (struct ferrofs_extract_summary);
    struct ferrofs_check_options checking = FERROFS_INIT (struct ferrofs_check_options);
    struct ferrofs_check_summary checked = FERROFS_INIT (struct ferrofs_check_summary);
    char tree[512], other[512], output[512], file[600];
    const char *patterns[1];
    int problems = 0;
    ferrofs_image *image = NULL, *made = NULL;

    sprintf (tree, "%s/tree", scratch);
    sprintf (other, "%s/other", scratch);
    sprintf (output, "%s/made.erofs", scratch);
    sprintf (file, "%s/added", tree);
    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
    extracting.flags = FERROFS_EXTRACT_OWNERS | FERROFS_EXTRACT_NO_OWNERS;
    EXPECT (code_of (ferrofs_extract (image, tree, &extracting, NULL, &error)) == FERROFS_E_INVALID);
    extracting.flags = FERROFS_EXTRACT_NO_OWNERS | FERROFS_EXTRACT_NO_DEVICES | FERROFS_EXTRACT_NO_SET_ID;
    extracting.ctx = &problems;
    extracting.problem = count_problem;
    EXPECT (ferrofs_extract (image, tree, &extracting, &extracted, &error) == 0 && problems == 0);
    EXPECT (extracted.entries > 1);
    EXPECT (code_of (ferrofs_extract (image, tree, &extracting, &extracted, &error)) == FERROFS_E_EXISTS);
    extracting.flags |= FERROFS_EXTRACT_REPLACE;
    EXPECT (ferrofs_extract (image, tree, &extracting, &extracted, &error) == 0);
    patterns[0] = "no/such/file";
    extracting.patterns = patterns;
    extracting.pattern_count = 1;
    EXPECT (ferrofs_extract (image, other, &extracting, &extracted, &error) == 1 && problems == 1);
    EXPECT (extracted.failures == 1);
    problems = 0;
    ferrofs_close (image);

    write_file (file, "some text, some text, some text");
    options.compression = "lz5";
    EXPECT (code_of (ferrofs_build (tree, output, &options, NULL, &error)) == FERROFS_E_INVALID);
    options.compression = "lz4hc,level=9";
    options.block_bytes = 1000;
    EXPECT (code_of (ferrofs_build (tree, output, &options, NULL, &error)) == FERROFS_E_INVALID);
    options.block_bytes = 0;
    options.label = "a label of sixteen";
    EXPECT (code_of (ferrofs_build (tree, output, &options, NULL, &error)) == FERROFS_E_INVALID);
    options.label = "c";
    options.progress = stop_at_once;
    options.ctx = &options;
    EXPECT (code_of (ferrofs_build (tree, output, &options, NULL, &error)) == FERROFS_E_CANCELLED);
    EXPECT (progress_calls > 0);
    options.progress = NULL;
    options.flags = FERROFS_BUILD_ALL_ROOT | FERROFS_BUILD_TIME | FERROFS_BUILD_DEDUPE;
    options.time = 1000;
    EXPECT (ferrofs_build (tree, output, &options, &built, &error) == 0 && built.bytes >= 4096);
    EXPECT (code_of (ferrofs_build (tree, output, &options, &built, &error)) == FERROFS_E_EXISTS);
    options.flags |= FERROFS_BUILD_REPLACE;
    EXPECT (ferrofs_build (tree, output, &options, NULL, &error) == 0);
    EXPECT (code_of (ferrofs_build ("/nonexistent", output, &options, NULL, &error)) == FERROFS_E_NOT_FOUND);

    EXPECT (ferrofs_open (output, NULL, &made, &error) == 0);
    checking.problem = count_problem;
    checking.progress = NULL;
    checking.ctx = &problems;
    EXPECT (ferrofs_check (made, &checking, &checked, &error) == 0);
    EXPECT (checked.problems == 0 && checked.inodes == built.inodes && problems == 0);
    checking.path = "/no/such";
    checked.inodes = 77;
    EXPECT (ferrofs_check (made, &checking, &checked, &error) == FERROFS_E_NOT_FOUND);
    EXPECT (ferrofs_error_errno (error) == ENOENT && strcmp (ferrofs_error_path (error, NULL), "/no/such") == 0);
    EXPECT (code_of (FERROFS_E_NOT_FOUND) == FERROFS_E_NOT_FOUND && checked.inodes == 77 && problems == 0);
    checking.path = "added/below";
    EXPECT (ferrofs_check (made, &checking, &checked, &error) == FERROFS_E_TYPE);
    EXPECT (ferrofs_error_errno (error) == ENOTDIR && code_of (FERROFS_E_TYPE) == FERROFS_E_TYPE);
    checking.path = "added";
    EXPECT (ferrofs_check (made, &checking, &checked, &error) == 0 && checked.inodes == 1 && problems == 0);
    checking.path = "";
    EXPECT (ferrofs_check (made, &checking, &checked, &error) == 0 && checked.inodes == built.inodes);
    ferrofs_close (made);
}

/* Every attribute counts as work. */
static void limits_end_an_extraction (const char *path, const char *scratch)
{
    struct ferrofs_extract_options extracting = FERROFS_INIT (struct ferrofs_extract_options);
    char tree[512];
    ferrofs_image *image = NULL;

    sprintf (tree, "%s/limited", scratch);
    EXPECT (ferrofs_open (path, NULL, &image, &error) == 0);
    extracting.flags = FERROFS_EXTRACT_NO_OWNERS | FERROFS_EXTRACT_REPLACE;
    extracting.max_work = 1;
    EXPECT (code_of (ferrofs_extract (image, tree, &extracting, NULL, &error)) == FERROFS_E_LIMIT);
    /* A program with an older header does not know it. */
    extracting.size = offsetof (struct ferrofs_extract_options, max_work);
    EXPECT (ferrofs_extract (image, tree, &extracting, NULL, &error) >= 0);
    extracting.max_output = 1;
    EXPECT (code_of (ferrofs_extract (image, tree, &extracting, NULL, &error)) == FERROFS_E_LIMIT);
    ferrofs_close (image);
}

int main (int argc, char **argv)
{
    EXPECT (argc == 4);
    open_in_all_ways (argv[1]);
    tables_are_closed (argv[1]);
    errors_have_their_place (argv[1]);
    read_a_tree (argv[1]);
    read_attributes (argv[2]);
    build_and_extract (argv[1], argv[3]);
    limits_end_an_extraction (argv[2], argv[3]);
    return 0;
}
