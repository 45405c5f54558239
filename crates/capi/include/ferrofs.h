/*
 * libferrofs: EROFS images from C and C++: open, look up, list, read, check, extract, build.
 *
 * Rules that hold for every function:
 *
 * - The library prints nothing, never ends the process, changes no signal handler and no environment, and
 *   never unwinds into the caller. It starts threads of its own, which decode; they live until the process
 *   ends, so the library must not be unloaded (it is linked with -z nodelete).
 * - A function that returns int returns FERROFS_OK (0) or a negative enum ferrofs_code. ferrofs_readdir,
 *   ferrofs_check and ferrofs_extract also return 1. On failure *error gets an object that the caller frees with
 *   ferrofs_error_free. `error` may be NULL; *error is only written on failure.
 * - Output parameters are written on success only, unless the function says otherwise.
 * - Every structure begins with its size in bytes, which the caller sets to sizeof (the structure). The rest
 *   of an option structure is zero for the defaults: FERROFS_INIT(TYPE) is such a value. A structure of an
 *   older or newer header is accepted; one that sets a member which this library does not know is refused
 *   with FERROFS_E_UNSUPPORTED.
 * - Options may be NULL for the defaults.
 * - Paths and names are bytes that end with NUL; the library assumes no encoding. A path in an image starts at
 *   its root, with or without a slash.
 * - Images and inodes may be used by any number of threads at once. A directory, an error, and an output
 *   buffer belong to one thread at a time. Handles may be freed in any order: an inode or a directory keeps its
 *   image open.
 * - After fork, only the parent may use handles that were open. The child opens its own.
 * - Images are untrusted: whatever an image contains, the result is data or an error, in bounded memory.
 * - Callbacks must not throw, longjmp, or free a handle that is in use by the call.
 */
#ifndef FERROFS_H
#define FERROFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; ferrofs_version has that of the library. */
#define FERROFS_VERSION_MAJOR 0
#define FERROFS_VERSION_MINOR 1
#define FERROFS_VERSION_PATCH 0

/* The first member of every structure, the rest zero: struct ferrofs_stat st = FERROFS_INIT (struct ferrofs_stat); */
#ifdef __cplusplus
#define FERROFS_INIT(type) ferrofs_init_of<type> ()
#elif defined __STDC_VERSION__ && __STDC_VERSION__ >= 199901L
#define FERROFS_INIT(type) {.size = sizeof (type)}
#else
#define FERROFS_INIT(type) {sizeof (type)}
#endif

typedef struct ferrofs_image ferrofs_image;
typedef struct ferrofs_inode ferrofs_inode;
typedef struct ferrofs_dir ferrofs_dir;
typedef struct ferrofs_error ferrofs_error;

enum ferrofs_code {
    FERROFS_OK = 0,
    FERROFS_E_INVALID = -1,     /* an argument or option is wrong */
    FERROFS_E_IO = -2,          /* the system refused, or pread failed; ferrofs_error_errno has the number */
    FERROFS_E_CORRUPT = -3,     /* the image breaks a rule of the format */
    FERROFS_E_NOT_FOUND = -4,   /* no such path or attribute */
    FERROFS_E_TYPE = -5,        /* the inode is of the wrong type. The number of errno.h is ENOTDIR where a directory
                                 * was needed, EISDIR where a file was needed and it is a directory, else EINVAL */
    FERROFS_E_UNSUPPORTED = -6, /* this library does not have it */
    FERROFS_E_MEMORY = -7,      /* no memory or no threads */
    FERROFS_E_LIMIT = -8,       /* a limit of the caller or of the library */
    FERROFS_E_CANCELLED = -9,   /* a callback asked to stop */
    FERROFS_E_EXISTS = -10,     /* the output exists */
    FERROFS_E_RANGE = -11,      /* the buffer is too small; *length has the size that is needed */
    FERROFS_E_LOOP = -12,       /* too many symbolic links */
    FERROFS_E_INTERNAL = -13    /* a bug of the library */
};

/* The version of the library, such as "0.1.0". */
const char *ferrofs_version(void);

/* ---- errors ------------------------------------------------------------------------------------------ */

/* A member of enum ferrofs_code. */
int ferrofs_error_code(const ferrofs_error *error);
/* The number of errno.h that fits best; never 0. */
int ferrofs_error_errno(const ferrofs_error *error);
/* What went wrong and where, in one line of UTF-8 without control characters. Valid until the error is freed. */
const char *ferrofs_error_message(const ferrofs_error *error);
/* The path in the image, or of the file, with its length; "" if there is none. */
const char *ferrofs_error_path(const ferrofs_error *error, size_t *length);
/* 1 and the inode number if the error is about an inode, else 0. */
int ferrofs_error_nid(const ferrofs_error *error, uint64_t *nid);
/* 1 and the byte of the image if it is known, else 0. */
int ferrofs_error_offset(const ferrofs_error *error, uint64_t *offset);
/* NULL is ignored. */
void ferrofs_error_free(ferrofs_error *error);

/* ---- opening ----------------------------------------------------------------------------------------- */

/* Where the bytes of an image come from. The library copies the table. The functions are called from many
 * threads at once. */
struct ferrofs_io {
    size_t size;
    void *ctx;
    /* Reads up to `count` bytes at `offset`. Returns how many, fewer only at the end, or a negative number
     * of errno.h. */
    int64_t (*pread)(void *ctx, void *buffer, size_t count, uint64_t offset);
    /* The length in bytes; it is asked for once. */
    uint64_t (*length)(void *ctx);
    /* Called once for each table of a call: when the last handle of the image is freed, or before
     * ferrofs_open_io returns if it fails for any reason, but for a table whose size is not one of a structure:
     * nothing else of that table is read. Also a table that is given twice is closed once for each. May be NULL.
     * No function of the table is called afterwards. Threads of the library may be in pread when the last handle is
     * freed. The function that frees it waits for them, so do not hold a lock that pread takes. If pread itself frees
     * the last handle, nothing is waited for, and the table is closed when the last pread that runs has returned. */
    void (*close)(void *ctx);
};

/* Opens the image although the checksum of its superblock is wrong. */
#define FERROFS_OPEN_IGNORE_CHECKSUM UINT32_C (1)

struct ferrofs_open_options {
    size_t size;
    /* The byte of the file at which the image starts; not for ferrofs_open_io. */
    uint64_t offset;
    /* Files of the extra devices, in the order of the device table; not for ferrofs_open_io. */
    const char *const *devices;
    size_t device_count;
    /* The most memory for buffers and caches, at least 20 MiB; 0: an eighth of the system's, from 20 to 256 MiB. */
    uint64_t memory_bytes;
    /* FERROFS_OPEN_*. */
    uint32_t flags;
    uint32_t reserved;
};

/* Opens a regular file or a block device; anything else is FERROFS_E_INVALID. */
int ferrofs_open(const char *path, const struct ferrofs_open_options *options, ferrofs_image **image,
                 ferrofs_error **error);
/* Opens an image that the caller reads; `devices` are its extra devices. */
int ferrofs_open_io(const struct ferrofs_io *io, const struct ferrofs_io *const *devices, size_t device_count,
                    const struct ferrofs_open_options *options, ferrofs_image **image, ferrofs_error **error);
/* Frees the handle. NULL is ignored. */
void ferrofs_close(ferrofs_image *image);

struct ferrofs_image_info {
    size_t size;
    uint64_t inodes;     /* as the superblock says */
    uint64_t blocks;     /* as the superblock says */
    int64_t build_time;  /* seconds since 1970 */
    uint64_t root_nid;
    uint32_t block_bytes;
    uint32_t device_count;
    uint8_t uuid[16];
    char label[24];      /* ends with NUL */
};

int ferrofs_image_get_info(const ferrofs_image *image, struct ferrofs_image_info *info, ferrofs_error **error);

/* ---- inodes ------------------------------------------------------------------------------------------ */

struct ferrofs_stat {
    size_t size;
    uint64_t nid;         /* the number of the inode; st_ino of other interfaces */
    uint64_t bytes;       /* st_size */
    int64_t mtime;        /* seconds since 1970 */
    uint32_t mtime_nsec;
    uint32_t mode;        /* type and permissions, with the numbers of Linux */
    uint32_t uid;
    uint32_t gid;
    uint32_t nlink;
    uint32_t rdev_major;  /* of device nodes, else 0 */
    uint32_t rdev_minor;
    uint32_t has_xattrs;  /* 0: the inode has no extended attributes */
};

/* As open with O_PATH: symbolic links are followed, inside the image. */
int ferrofs_lookup(const ferrofs_image *image, const char *path, ferrofs_inode **inode, ferrofs_error **error);
/* The same with O_NOFOLLOW: a link in the last component is the result. */
int ferrofs_lookup_nofollow(const ferrofs_image *image, const char *path, ferrofs_inode **inode,
                            ferrofs_error **error);
/* The inode with a number that ferrofs_readdir or ferrofs_stat returned. */
int ferrofs_inode_by_nid(const ferrofs_image *image, uint64_t nid, ferrofs_inode **inode, ferrofs_error **error);
/* NULL is ignored. */
void ferrofs_inode_free(ferrofs_inode *inode);

int ferrofs_inode_stat(const ferrofs_inode *inode, struct ferrofs_stat *stat, ferrofs_error **error);
int ferrofs_stat(const ferrofs_image *image, const char *path, struct ferrofs_stat *stat, ferrofs_error **error);
int ferrofs_lstat(const ferrofs_image *image, const char *path, struct ferrofs_stat *stat, ferrofs_error **error);

/* Reads bytes of a regular file. *done is less than `count` only at the end of the file. */
int ferrofs_pread(const ferrofs_inode *inode, void *buffer, size_t count, uint64_t offset, size_t *done,
                  ferrofs_error **error);

/* The following three write to a buffer of `size` bytes and set *length. If the buffer is too small, they
 * return FERROFS_E_RANGE, and *length is the size that is needed. With a size of 0 they only set *length. */

/* The target of a symbolic link, with a NUL behind it that *length does not count, but the size must. */
int ferrofs_readlink(const ferrofs_inode *inode, char *buffer, size_t size, size_t *length, ferrofs_error **error);
/* An extended attribute by its full name, as in "user.comment". */
int ferrofs_getxattr(const ferrofs_inode *inode, const char *name, void *buffer, size_t size, size_t *length,
                     ferrofs_error **error);
/* All names, each with a NUL behind it. */
int ferrofs_listxattr(const ferrofs_inode *inode, char *buffer, size_t size, size_t *length,
                      ferrofs_error **error);

/* ---- directories ------------------------------------------------------------------------------------- */

struct ferrofs_dirent {
    size_t size;
    uint64_t nid;
    const char *name;     /* ends with NUL; valid until the next call with the same directory */
    size_t name_length;
    uint32_t mode;        /* the type bits of st_mode; 0 if the directory does not say */
    uint32_t reserved;
};

int ferrofs_opendir(const ferrofs_inode *inode, ferrofs_dir **dir, ferrofs_error **error);
/* 1 and the next entry, without "." and ".."; 0 at the end; a negative code on failure, after which the next call
 * tries the same entry again. Entries come as the image has them. A sound one has them sorted by bytes, which
 * ferrofs_check checks. */
int ferrofs_readdir(ferrofs_dir *dir, struct ferrofs_dirent *entry, ferrofs_error **error);
void ferrofs_rewinddir(ferrofs_dir *dir);
/* NULL is ignored. */
void ferrofs_closedir(ferrofs_dir *dir);

/* ---- work on whole images ---------------------------------------------------------------------------- */

/* How much is done: entries, and bytes of files. Return something other than 0 to stop with
 * FERROFS_E_CANCELLED. Callbacks are called by the thread that called the function, except for that of
 * ferrofs_build, which any thread may call, one at a time. */
typedef int (*ferrofs_progress)(void *ctx, uint64_t entries, uint64_t bytes);
/* A problem, which the library frees afterwards; return something other than 0 to stop. */
typedef int (*ferrofs_problem)(void *ctx, const ferrofs_error *problem);

struct ferrofs_check_options {
    size_t size;
    const char *path;          /* what is checked, with all below it; NULL: everything */
    ferrofs_problem problem;   /* may be NULL */
    ferrofs_progress progress; /* may be NULL */
    void *ctx;
    size_t threads;            /* 0: one for each CPU */
    uint64_t max_work;         /* the most bytes of repeated work; 0: a multiple of the image */
};

struct ferrofs_check_summary {
    size_t size;
    uint64_t inodes;
    uint64_t bytes;
    uint64_t problems;
};

/* Reads everything and compares it with the rules of the format. 0: the image is sound; 1: it has problems,
 * of which `problem` was told; a negative code: it could not be checked, as where the path of the options leads
 * to nothing (FERROFS_E_NOT_FOUND) or through something that is no directory (FERROFS_E_TYPE). A link at the end
 * of that path is checked itself. `summary` may be NULL. */
int ferrofs_check(const ferrofs_image *image, const struct ferrofs_check_options *options,
                  struct ferrofs_check_summary *summary, ferrofs_error **error);

/* The destination may have entries: files are replaced, directories are merged. Without it, it must be new or
 * empty. */
#define FERROFS_EXTRACT_REPLACE UINT32_C (1)
/* Owners are those of the image; the default if the caller is root. */
#define FERROFS_EXTRACT_OWNERS UINT32_C (2)
/* Owners are those of the caller; the default for other users. */
#define FERROFS_EXTRACT_NO_OWNERS UINT32_C (4)
#define FERROFS_EXTRACT_NO_XATTRS UINT32_C (8)
#define FERROFS_EXTRACT_NO_SET_ID UINT32_C (16)
#define FERROFS_EXTRACT_NO_DEVICES UINT32_C (32)
/* The destination gets the owner, mode, times and attributes of the root of the image. That is the default for a
 * destination that the call creates; one that exists keeps its own. */
#define FERROFS_EXTRACT_DESTINATION_METADATA UINT32_C (64)

struct ferrofs_extract_options {
    size_t size;
    const char *const *patterns; /* paths and globs; none: everything */
    size_t pattern_count;
    ferrofs_problem problem;     /* may be NULL */
    ferrofs_progress progress;   /* may be NULL */
    void *ctx;
    size_t threads;              /* 0: one for each CPU */
    uint64_t max_output;         /* the most bytes that are written, without holes; 0: 16 GiB and 8 KiB for each byte of
                                  * the image; UINT64_MAX: no limit */
    uint32_t flags;              /* FERROFS_EXTRACT_* */
    uint32_t reserved;
    uint64_t max_work;           /* the most bytes of repeated work; 0: a multiple of the image */
};

struct ferrofs_extract_summary {
    size_t size;
    uint64_t entries;
    uint64_t bytes;
    uint64_t failures;
};

/* Extracts below the directory `destination`, which is created. 0: everything; 1: some entries failed, of
 * which `problem` was told; a negative code: nothing more could be done. `summary` may be NULL. */
int ferrofs_extract(const ferrofs_image *image, const char *destination,
                    const struct ferrofs_extract_options *options, struct ferrofs_extract_summary *summary,
                    ferrofs_error **error);

/* An existing output is replaced when the image is complete. */
#define FERROFS_BUILD_REPLACE UINT32_C (1)
/* Everything belongs to user 0 and group 0. */
#define FERROFS_BUILD_ALL_ROOT UINT32_C (2)
/* Duplicate data is stored once. */
#define FERROFS_BUILD_DEDUPE UINT32_C (4)
/* The ends of files share pclusters. */
#define FERROFS_BUILD_FRAGMENTS UINT32_C (8)
/* Extended attributes are left out. */
#define FERROFS_BUILD_NO_XATTRS UINT32_C (16)
/* `time` is the time of the image, and no file is newer: later times become it. Without it, the newest file has the
 * time of the image. */
#define FERROFS_BUILD_TIME UINT32_C (32)

struct ferrofs_build_options {
    size_t size;
    const char *compression;   /* as in "lz4hc,level=9" or "zstd:lz4"; NULL: none */
    uint32_t block_bytes;      /* 0: 4096 */
    uint32_t pcluster_bytes;   /* at least a block, which fewer bytes mean, too */
    uint8_t uuid[16];
    const char *label;         /* at most 15 bytes; NULL: none */
    int64_t time;
    ferrofs_progress progress; /* may be NULL */
    void *ctx;
    size_t threads;            /* 0: one for each CPU; the image does not depend on it */
    uint64_t memory_bytes;     /* 0: 512 MiB */
    uint32_t flags;            /* FERROFS_BUILD_* */
    uint32_t reserved;
};

struct ferrofs_build_summary {
    size_t size;
    uint64_t bytes;         /* of the image */
    uint64_t inodes;
    uint64_t content_bytes; /* of all files */
};

/* Builds `output` from a directory or a tar archive, which may be compressed. The output gets its name when
 * it is complete. Equal sources and options give equal bytes. `summary` may be NULL. */
int ferrofs_build(const char *source, const char *output, const struct ferrofs_build_options *options,
                  struct ferrofs_build_summary *summary, ferrofs_error **error);

#ifdef __cplusplus
} /* extern "C" */

template <typename T> static inline T ferrofs_init_of ()
{
    T value = T ();
    value.size = sizeof (T);
    return value;
}
#endif

#endif /* FERROFS_H */
