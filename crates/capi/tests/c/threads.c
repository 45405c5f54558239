/* Eight threads read one image at once: threads IMAGE. Every thread must see the same bytes. */
#define _POSIX_C_SOURCE 200809L
#include <ferrofs.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define ROUNDS 20

static ferrofs_image *image;

static uint64_t sum_of (const ferrofs_inode *inode, uint64_t sum)
{
    unsigned char bytes[4096];
    uint64_t offset = 0;
    size_t done, at;

    do {
        if (ferrofs_pread (inode, bytes, sizeof bytes, offset, &done, NULL) < 0)
            abort ();
        for (at = 0; at < done; at++)
            sum = sum * 31 + bytes[at];
        offset += done;
    } while (done);
    return sum;
}

static uint64_t walk (uint64_t nid, uint64_t sum)
{
    struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat);
    struct ferrofs_dirent entry = FERROFS_INIT (struct ferrofs_dirent);
    ferrofs_inode *inode;
    ferrofs_dir *dir;

    if (ferrofs_inode_by_nid (image, nid, &inode, NULL) < 0 || ferrofs_inode_stat (inode, &st, NULL) < 0)
        abort ();
    if ((st.mode & 0170000) == 0100000)
        sum = sum_of (inode, sum);
    if ((st.mode & 0170000) == 0040000) {
        if (ferrofs_opendir (inode, &dir, NULL) < 0)
            abort ();
        while (ferrofs_readdir (dir, &entry, NULL) == 1)
            sum = walk (entry.nid, sum + entry.name_length);
        ferrofs_closedir (dir);
    }
    ferrofs_inode_free (inode);
    return sum;
}

static void *run (void *result)
{
    struct ferrofs_image_info info = FERROFS_INIT (struct ferrofs_image_info);
    uint64_t sum = 0;
    int round;

    if (ferrofs_image_get_info (image, &info, NULL) < 0)
        abort ();
    for (round = 0; round < ROUNDS; round++)
        sum = walk (info.root_nid, sum);
    *(uint64_t *) result = sum;
    return NULL;
}

int main (int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t sums[THREADS];
    int number;

    if (argc != 2 || ferrofs_open (argv[1], NULL, &image, NULL) < 0)
        return 2;
    for (number = 0; number < THREADS; number++)
        if (pthread_create (&threads[number], NULL, run, &sums[number]))
            return 2;
    for (number = 0; number < THREADS; number++)
        pthread_join (threads[number], NULL);
    ferrofs_close (image);
    for (number = 1; number < THREADS; number++)
        if (sums[number] != sums[0])
            return 1;
    return sums[0] ? 0 : 1;
}
