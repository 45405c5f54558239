/* Lists an image, as `find` does: cc list.c $(pkg-config --cflags --libs ferrofs) */
#include <ferrofs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail (ferrofs_error *error)
{
    fprintf (stderr, "list: %s\n", ferrofs_error_message (error));
    ferrofs_error_free (error);
    return 1;
}

static int list (const ferrofs_image *image, uint64_t nid, const char *path)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat);
    struct ferrofs_dirent entry = FERROFS_INIT (struct ferrofs_dirent);
    ferrofs_inode *inode = NULL;
    ferrofs_dir *dir = NULL;
    ferrofs_error *error = NULL;
    int found, status = 0;

    if (ferrofs_inode_by_nid (image, nid, &inode, &error) < 0)
        return fail (error);
    if (ferrofs_inode_stat (inode, &st, &error) < 0) {
        ferrofs_inode_free (inode);
        return fail (error);
    }
    printf ("%06o %u:%u %llu %s\n", (unsigned) st.mode, (unsigned) st.uid, (unsigned) st.gid,
            (unsigned long long) st.bytes, *path ? path : "/");
    if ((st.mode & 0170000) == 0040000) {
        if (ferrofs_opendir (inode, &dir, &error) < 0) {
            ferrofs_inode_free (inode);
            return fail (error);
        }
        while ((found = ferrofs_readdir (dir, &entry, &error)) > 0) {
            char *child = (char *) malloc (strlen (path) + entry.name_length + 2);

            if (!child)
                abort ();
            sprintf (child, "%s/%s", path, entry.name);
            status |= list (image, entry.nid, child);
            free (child);
        }
        if (found < 0)
            status = fail (error);
        ferrofs_closedir (dir);
    }
    ferrofs_inode_free (inode);
    return status;
}

int main (int argc, char **argv)
{
    struct ferrofs_image_info info = FERROFS_INIT (struct ferrofs_image_info);
    ferrofs_image *image = NULL;
    ferrofs_error *error = NULL;
    int status;

    if (argc != 2) {
        fprintf (stderr, "usage: list IMAGE\n");
        return 2;
    }
    if (ferrofs_open (argv[1], NULL, &image, &error) < 0)
        return fail (error);
    if (ferrofs_image_get_info (image, &info, &error) < 0)
        return fail (error);
    /* An image is untrusted: a directory that contains itself would make this recursion endless. */
    status = ferrofs_check (image, NULL, NULL, &error);
    if (status < 0)
        status = fail (error);
    else if (status > 0)
        fprintf (stderr, "list: the image has problems; ferrofs check lists them\n");
    else
        status = list (image, info.root_nid, "");
    ferrofs_close (image);
    return status;
}
