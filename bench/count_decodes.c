/* Counts what a dynamically linked program decodes, and how often the same cluster.
 *
 *   cc -O2 -shared -fPIC -o count_decodes.so count_decodes.c -ldl
 *   COUNT_DECODES=FILE LD_PRELOAD=./count_decodes.so PROGRAM ...
 *
 * At the end of the process one line of JSON is appended to FILE, unless nothing was decoded:
 * "decodes" (streams begun, or calls that decode at once), "distinct" (different inputs among them, told
 * apart by their length and the first 4 KiB), "bytes" (that came out of them).
 * Covered: LZ4_decompress_safe and _partial, libdeflate_deflate_decompress, ZSTD_decompress, -DCtx and
 * -Stream, and lzma_code for decoders of MicroLZMA. A stream begins with its first call after
 * ZSTD_initDStream or lzma_microlzma_decoder. Encoders are not counted.
 * The decodes experiment of bench calls it; it is no part of ferrofs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEEN_MOST = 1 << 22, STREAMS_MOST = 1024, HEAD_BYTES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t decodes, distinct, bytes;
static uint64_t *seen;
/* Streams that were begun and have had no input yet (1), or had it (2). */
static struct { const void *stream; int state; } streams[STREAMS_MOST];

static void *real(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		fprintf(stderr, "count_decodes: no %s to call\n", name);
		abort();
	}
	return found;
}

/* Declares the function that the program would have called as `next`. */
#define REAL(name) __typeof__(name) *next = real(#name)

static uint64_t hash(const unsigned char *input, size_t length)
{
	uint64_t value = 0xcbf29ce484222325ULL ^ length;
	size_t head = length < HEAD_BYTES ? length : HEAD_BYTES;

	for (size_t i = 0; i < head; i++)
		value = (value ^ input[i]) * 0x100000001b3ULL;
	return value ? value : 1;
}

/* A decode begins with this input. */
static void begin(const void *input, size_t length)
{
	uint64_t value = hash(input, length);

	pthread_mutex_lock(&lock);
	decodes++;
	if (!seen)
		seen = calloc(SEEN_MOST, sizeof(*seen));
	if (!seen || distinct > SEEN_MOST / 2) {
		fprintf(stderr, "count_decodes: too many inputs to distinguish\n");
		abort();
	}
	for (uint64_t at = value % SEEN_MOST; seen[at] != value; at = (at + 1) % SEEN_MOST) {
		if (!seen[at]) {
			seen[at] = value;
			distinct++;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

static void produce(size_t length)
{
	pthread_mutex_lock(&lock);
	bytes += length;
	pthread_mutex_unlock(&lock);
}

/* Notes that a stream is new. */
static void renew(const void *stream)
{
	int at = -1;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < STREAMS_MOST; i++) {
		if (streams[i].stream == stream) {
			at = i;
			break;
		}
		if (at < 0 && !streams[i].stream)
			at = i;
	}
	if (at < 0) {
		fprintf(stderr, "count_decodes: too many streams at a time\n");
		abort();
	}
	streams[at].stream = stream;
	streams[at].state = 1;
	pthread_mutex_unlock(&lock);
}

/* Whether this is a stream that was renewed: 0 no, 1 with its first input, 2 later. */
static int state_of(const void *stream, int forget)
{
	int state = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < STREAMS_MOST; i++) {
		if (streams[i].stream == stream) {
			state = streams[i].state;
			streams[i].state = 2;
			if (forget)
				streams[i].stream = NULL;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return state;
}

int LZ4_decompress_safe(const char *input, char *output, int length, int capacity)
{
	int made;

	REAL(LZ4_decompress_safe);
	begin(input, length < 0 ? 0 : (size_t)length);
	made = next(input, output, length, capacity);
	produce(made < 0 ? 0 : (size_t)made);
	return made;
}

int LZ4_decompress_safe_partial(const char *input, char *output, int length, int wanted, int capacity)
{
	int made;

	REAL(LZ4_decompress_safe_partial);
	begin(input, length < 0 ? 0 : (size_t)length);
	made = next(input, output, length, wanted, capacity);
	produce(made < 0 ? 0 : (size_t)made);
	return made;
}

int libdeflate_deflate_decompress(void *decoder, const void *input, size_t length, void *output, size_t capacity,
				  size_t *made)
{
	int answer;

	REAL(libdeflate_deflate_decompress);
	begin(input, length);
	answer = next(decoder, input, length, output, capacity, made);
	/* A decoder that ran out of room has filled it. */
	produce(answer == 0 && made ? *made : capacity);
	return answer;
}

size_t ZSTD_decompress(void *output, size_t capacity, const void *input, size_t length)
{
	size_t made;

	REAL(ZSTD_decompress);
	begin(input, length);
	made = next(output, capacity, input, length);
	produce(made > capacity ? 0 : made);
	return made;
}

size_t ZSTD_decompressDCtx(void *context, void *output, size_t capacity, const void *input, size_t length)
{
	size_t made;

	REAL(ZSTD_decompressDCtx);
	begin(input, length);
	made = next(context, output, capacity, input, length);
	produce(made > capacity ? 0 : made);
	return made;
}

/* The beginnings of public structures of libzstd and liblzma, which are part of their ABIs. */
struct zstd_in { const void *bytes; size_t size, position; };
struct zstd_out { void *bytes; size_t size, position; };
struct lzma { const uint8_t *in; size_t in_left; uint64_t in_total; uint8_t *out; size_t out_left; };

size_t ZSTD_initDStream(void *stream)
{

	REAL(ZSTD_initDStream);
	renew(stream);
	return next(stream);
}

size_t ZSTD_freeDStream(void *stream)
{

	REAL(ZSTD_freeDStream);
	state_of(stream, 1);
	return next(stream);
}

size_t ZSTD_decompressStream(void *stream, struct zstd_out *output, struct zstd_in *input)
{
	size_t before = output->position, answer;

	REAL(ZSTD_decompressStream);
	if (state_of(stream, 0) == 1)
		begin((const char *)input->bytes + input->position, input->size - input->position);
	answer = next(stream, output, input);
	produce(output->position - before);
	return answer;
}

int lzma_microlzma_decoder(struct lzma *stream, uint64_t in_size, uint64_t out_size, int is_exact, uint32_t dict)
{

	REAL(lzma_microlzma_decoder);
	renew(stream);
	return next(stream, in_size, out_size, is_exact, dict);
}

int lzma_code(struct lzma *stream, int action)
{
	size_t before = stream->out_left;
	int state = state_of(stream, 0), answer;

	REAL(lzma_code);
	if (state == 1)
		begin(stream->in, stream->in_left);
	answer = next(stream, action);
	if (state)
		produce(before - stream->out_left);
	return answer;
}

void lzma_end(struct lzma *stream)
{

	REAL(lzma_end);
	state_of(stream, 1);
	next(stream);
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("COUNT_DECODES");
	char line[256];
	int length, file;

	if (!path || !decodes)
		return;
	length = snprintf(line, sizeof(line), "{\"decodes\": %llu, \"distinct\": %llu, \"bytes\": %llu}\n",
			  (unsigned long long)decodes, (unsigned long long)distinct, (unsigned long long)bytes);
	file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (file < 0 || write(file, line, (size_t)length) != length)
		perror("count_decodes");
	if (file >= 0)
		close(file);
}
