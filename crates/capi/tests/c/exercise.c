/* Reads everything of images that may be damaged, in every way that the library has, and prints nothing:
 * exercise SCRATCH-DIR IMAGE... Ends with 0 unless the library reports a bug of its own. */
#include <ferrofs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most inodes that are read of one image: a damaged directory may name as many as it likes. */
#define INODES_MAX 2000
#define DEPTH_MAX 40
#define FILE_BYTES_MAX (4 << 20)

static int bugs;
static int inodes;
static char *buffer;
#define BUFFER_BYTES (1 << 16)

/* Whether a call failed; its error is read and freed. */
static int failed (int code, ferrofs_error *error)
{
    uint64_t nid, offset;
    size_t length;

    if (code >= 0)
        return 0;
    if (ferrofs_error_code (error) == FERROFS_E_INTERNAL || ferrofs_error_errno (error) <= 0)
        bugs++;
    if (strlen (ferrofs_error_message (error)) == 0 || strlen (ferrofs_error_path (error, &length)) != length)
        bugs++;
    (void) ferrofs_error_nid (error, &nid);
    (void) ferrofs_error_offset (error, &offset);
    ferrofs_error_free (error);
    return 1;
}

static void read_attributes (const ferrofs_inode *inode)
{
    ferrofs_error *error = NULL;
    size_t length = 0, at, size;
    int code = ferrofs_listxattr (inode, buffer, BUFFER_BYTES, &length, &error);
    char *names;

    if (failed (code, error))
        return;
    names = (char *) malloc (length + 1);
    if (!names)
        abort ();
    memcpy (names, buffer, length);
    for (at = 0; at < length; at += strlen (names + at) + 1) {
        error = NULL;
        code = ferrofs_getxattr (inode, names + at, buffer, BUFFER_BYTES, &size, &error);
        failed (code, error);
    }
    free (names);
}

static void read_data (const ferrofs_inode *inode, uint64_t bytes)
{
    uint64_t offset;
    size_t done = 0;

    for (offset = 0; offset < bytes && offset < FILE_BYTES_MAX; offset += BUFFER_BYTES) {
        ferrofs_error *error = NULL;
        int code = ferrofs_pread (inode, buffer, BUFFER_BYTES, offset, &done, &error);

        failed (code, error);
    }
}

static void read_tree (const ferrofs_image *image, uint64_t nid, int depth)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat);
    struct ferrofs_dirent entry = FERROFS_INIT (struct ferrofs_dirent);
    ferrofs_inode *inode = NULL;
    ferrofs_dir *dir = NULL;
    ferrofs_error *error = NULL;
    size_t length;
    int code;

    if (inodes++ > INODES_MAX || depth > DEPTH_MAX)
        return;
    code = ferrofs_inode_by_nid (image, nid, &inode, &error);
    if (failed (code, error))
        return;
    error = NULL;
    code = ferrofs_inode_stat (inode, &st, &error);
    failed (code, error);
    read_attributes (inode);
    error = NULL;
    code = ferrofs_readlink (inode, buffer, BUFFER_BYTES, &length, &error);
    failed (code, error);
    if ((st.mode & 0170000) == 0100000)
        read_data (inode, st.bytes);
    error = NULL;
    code = ferrofs_opendir (inode, &dir, &error);
    if (!failed (code, error)) {
        for (;;) {
            error = NULL;
            code = ferrofs_readdir (dir, &entry, &error);
            if (failed (code, error) || code == 0)
                break;
            read_tree (image, entry.nid, depth + 1);
        }
        ferrofs_closedir (dir);
    }
    ferrofs_inode_free (inode);
}

static int note_problem (void *ctx, const ferrofs_error *problem)
{
    (void) ctx;
    if (ferrofs_error_code (problem) == FERROFS_E_INTERNAL)
        bugs++;
    return 0;
}

static void exercise (const char *path, const char *scratch, int number)
{
    struct ferrofs_image_info info = FERROFS_INIT (struct ferrofs_image_info);
    struct ferrofs_check_options checking = FERROFS_INIT (struct ferrofs_check_options);
    struct ferrofs_extract_options extracting = FERROFS_INIT (struct ferrofs_extract_options);
    struct ferrofs_open_options options = FERROFS_INIT (struct ferrofs_open_options);
    char target[512];
    ferrofs_image *image = NULL;
    ferrofs_error *error = NULL;
    int code = ferrofs_open (path, NULL, &image, &error);

    if (failed (code, error)) {
        options.flags = FERROFS_OPEN_IGNORE_CHECKSUM;
        error = NULL;
        code = ferrofs_open (path, &options, &image, &error);
        if (failed (code, error))
            return;
    }
    error = NULL;
    code = ferrofs_image_get_info (image, &info, &error);
    failed (code, error);
    checking.problem = note_problem;
    error = NULL;
    code = ferrofs_check (image, &checking, NULL, &error);
    failed (code, error);
    inodes = 0;
    read_tree (image, info.root_nid, 0);
    sprintf (target, "%s/%d", scratch, number);
    extracting.problem = note_problem;
    extracting.max_output = 8 << 20;
    extracting.flags = FERROFS_EXTRACT_NO_DEVICES | FERROFS_EXTRACT_NO_OWNERS | FERROFS_EXTRACT_NO_SET_ID;
    error = NULL;
    code = ferrofs_extract (image, target, &extracting, NULL, &error);
    failed (code, error);
    ferrofs_close (image);
}

int main (int argc, char **argv)
{
    int number;

    buffer = (char *) malloc (BUFFER_BYTES);
    if (argc < 3 || !buffer)
        return 2;
    for (number = 2; number < argc; number++)
        exercise (argv[number], argv[1], number);
    free (buffer);
    return bugs ? 1 : 0;
}
