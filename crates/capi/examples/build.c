/* Builds an image and checks it: build SOURCE IMAGE [COMPRESSION] */
#include <ferrofs.h>

#include <stdio.h>
#include <string.h>

static int fail (ferrofs_error *error)
{
    fprintf (stderr, "build: %s (errno %d)\n", ferrofs_error_message (error), ferrofs_error_errno (error));
    ferrofs_error_free (error);
    return 1;
}

static int show_problem (void *ctx, const ferrofs_error *problem)
{
    (void) ctx;
    fprintf (stderr, "%s: %s\n", ferrofs_error_path (problem, NULL), ferrofs_error_message (problem));
    return 0; /* go on */
}

int main (int argc, char **argv)
{
    struct ferrofs_build_options options = FERROFS_INIT (struct ferrofs_build_options);
    struct ferrofs_build_summary built = FERROFS_INIT (struct ferrofs_build_summary);
    struct ferrofs_check_options check = FERROFS_INIT (struct ferrofs_check_options);
    ferrofs_image *image = NULL;
    ferrofs_error *error = NULL;
    int status;

    if (argc < 3) {
        fprintf (stderr, "usage: build SOURCE IMAGE [COMPRESSION]\n");
        return 2;
    }
    options.compression = argc > 3 ? argv[3] : "lz4hc,level=9";
    options.pcluster_bytes = 65536;
    options.label = "example";
    options.flags = FERROFS_BUILD_REPLACE;
    if (ferrofs_build (argv[1], argv[2], &options, &built, &error) < 0)
        return fail (error);
    printf ("%llu inodes, %llu bytes in %llu\n", (unsigned long long) built.inodes,
            (unsigned long long) built.content_bytes, (unsigned long long) built.bytes);
    if (ferrofs_open (argv[2], NULL, &image, &error) < 0)
        return fail (error);
    check.problem = show_problem;
    status = ferrofs_check (image, &check, NULL, &error);
    ferrofs_close (image);
    return status < 0 ? fail (error) : status;
}
