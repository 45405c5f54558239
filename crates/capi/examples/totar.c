/* Copies an image into a tar archive with libarchive: totar IMAGE TAR */
#include <ferrofs.h>

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first path of each inode with several names; the others become hard links to it. */
struct seen {
    uint64_t nid;
    char *path;
    struct seen *next;
};

struct copy {
    const ferrofs_image *image;
    struct archive *tar;
    struct seen *links;
};

static void die (const char *what)
{
    fprintf (stderr, "totar: %s\n", what);
    exit (1);
}

/* Ends the program if a call fails, which wrote `error`. */
#define CHECK(call) ((call) < 0 ? die (ferrofs_error_message (error)) : (void) 0)

static void check_archive (struct copy *copy, int code)
{
    if (code < ARCHIVE_WARN)
        die (archive_error_string (copy->tar));
}

static void *allocate (size_t size)
{
    void *memory = calloc (1, size + 1);

    if (!memory)
        die ("no memory");
    return memory;
}

static void add_xattrs (const ferrofs_inode *inode, struct archive_entry *entry)
{
    ferrofs_error *error = NULL;
    size_t length = 0, at, size;
    char *names;

    CHECK (ferrofs_listxattr (inode, NULL, 0, &length, &error));
    names = (char *) allocate (length);
    CHECK (ferrofs_listxattr (inode, names, length + 1, &length, &error));
    for (at = 0; at < length; at += strlen (names + at) + 1) {
        void *value;

        CHECK (ferrofs_getxattr (inode, names + at, NULL, 0, &size, &error));
        value = allocate (size);
        CHECK (ferrofs_getxattr (inode, names + at, value, size + 1, &size, &error));
        archive_entry_xattr_add_entry (entry, names + at, value, size);
        free (value);
    }
    free (names);
}

static void add_link_target (const ferrofs_inode *inode, struct archive_entry *entry)
{
    ferrofs_error *error = NULL;
    size_t length = 0;
    char *target;

    CHECK (ferrofs_readlink (inode, NULL, 0, &length, &error));
    target = (char *) allocate (length);
    CHECK (ferrofs_readlink (inode, target, length + 1, &length, &error));
    archive_entry_set_symlink (entry, target);
    free (target);
}

/* Whether the entry is a further name of an inode that is in the archive. */
static int is_hard_link (struct copy *copy, const struct ferrofs_stat *st, const char *path,
                         struct archive_entry *entry)
{
    struct seen *link;

    if (st->nlink < 2 || (st->mode & 0170000) == 0040000)
        return 0;
    for (link = copy->links; link; link = link->next)
        if (link->nid == st->nid) {
            archive_entry_set_hardlink (entry, link->path);
            return 1;
        }
    link = (struct seen *) allocate (sizeof *link);
    link->path = strcpy ((char *) allocate (strlen (path)), path);
    link->nid = st->nid;
    link->next = copy->links;
    copy->links = link;
    return 0;
}

static void copy_data (struct copy *copy, const ferrofs_inode *inode, uint64_t bytes)
{
    static char buffer[1 << 20];
    ferrofs_error *error = NULL;
    uint64_t offset;
    size_t done = 0;

    for (offset = 0; offset < bytes; offset += done) {
        CHECK (ferrofs_pread (inode, buffer, sizeof buffer, offset, &done, &error));
        if (!done)
            die ("a file ends early");
        if (archive_write_data (copy->tar, buffer, done) < 0)
            die (archive_error_string (copy->tar));
    }
}

static void copy_tree (struct copy *copy, uint64_t nid, const char *path)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat);
    struct ferrofs_dirent child = FERROFS_INIT (struct ferrofs_dirent);
    struct archive_entry *entry = archive_entry_new ();
    ferrofs_inode *inode = NULL;
    ferrofs_dir *dir = NULL;
    ferrofs_error *error = NULL;
    int is_link, found;

    CHECK (ferrofs_inode_by_nid (copy->image, nid, &inode, &error));
    CHECK (ferrofs_inode_stat (inode, &st, &error));
    archive_entry_set_pathname (entry, path);
    archive_entry_set_mode (entry, st.mode);
    archive_entry_set_uid (entry, st.uid);
    archive_entry_set_gid (entry, st.gid);
    archive_entry_set_mtime (entry, st.mtime, (long) st.mtime_nsec);
    archive_entry_set_rdevmajor (entry, st.rdev_major);
    archive_entry_set_rdevminor (entry, st.rdev_minor);
    archive_entry_set_size (entry, (st.mode & 0170000) == 0100000 ? (int64_t) st.bytes : 0);
    if ((st.mode & 0170000) == 0120000)
        add_link_target (inode, entry);
    add_xattrs (inode, entry);
    is_link = is_hard_link (copy, &st, path, entry);
    if (is_link)
        archive_entry_set_size (entry, 0);
    /* A tar archive cannot hold sockets. */
    if ((st.mode & 0170000) != 0140000) {
        check_archive (copy, archive_write_header (copy->tar, entry));
        if (!is_link && (st.mode & 0170000) == 0100000)
            copy_data (copy, inode, st.bytes);
    }
    archive_entry_free (entry);
    if ((st.mode & 0170000) == 0040000) {
        CHECK (ferrofs_opendir (inode, &dir, &error));
        while ((found = ferrofs_readdir (dir, &child, &error)) > 0) {
            char *name = (char *) allocate (strlen (path) + child.name_length + 1);

            sprintf (name, "%s/%s", path, child.name);
            copy_tree (copy, child.nid, name);
            free (name);
        }
        CHECK (found);
        ferrofs_closedir (dir);
    }
    ferrofs_inode_free (inode);
}

int main (int argc, char **argv)
{
    struct ferrofs_image_info info = FERROFS_INIT (struct ferrofs_image_info);
    ferrofs_image *image = NULL;
    ferrofs_error *error = NULL;
    struct copy copy = {NULL, NULL, NULL};

    if (argc != 3)
        die ("usage: totar IMAGE TAR");
    CHECK (ferrofs_open (argv[1], NULL, &image, &error));
    CHECK (ferrofs_image_get_info (image, &info, &error));
    if (ferrofs_check (image, NULL, NULL, &error) != 0)
        die ("the image has problems; ferrofs check lists them");
    copy.image = image;
    copy.tar = archive_write_new ();
    check_archive (&copy, archive_write_set_format_pax (copy.tar));
    check_archive (&copy, archive_write_open_filename (copy.tar, argv[2]));
    copy_tree (&copy, info.root_nid, ".");
    check_archive (&copy, archive_write_close (copy.tar));
    archive_write_free (copy.tar);
    while (copy.links) {
        struct seen *next = copy.links->next;

        free (copy.links->path);
        free (copy.links);
        copy.links = next;
    }
    ferrofs_close (image);
    return 0;
}
