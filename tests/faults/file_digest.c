/* Prints "DIGEST BYTES NAME" for each file: its XXH3-128 as results name it. */
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        unsigned char data[65536];
        unsigned long long bytes = 0;
        size_t got = 0;
        FILE *file = fopen(argv[i], "rb");
        XXH3_state_t *state = XXH3_createState();
        if (file == NULL || state == NULL) {
            perror(argv[i]);
            return 1;
        }
        (void)XXH3_128bits_reset(state);
        while ((got = fread(data, 1, sizeof data, file)) > 0) {
            (void)XXH3_128bits_update(state, data, got);
            bytes += got;
        }
        const XXH128_hash_t digest = XXH3_128bits_digest(state);
        (void)printf("%016llx%016llx %llu %s\n", (unsigned long long)digest.high64,
                     (unsigned long long)digest.low64, bytes, argv[i]);
        XXH3_freeState(state);
        (void)fclose(file);
    }
    return 0;
}
