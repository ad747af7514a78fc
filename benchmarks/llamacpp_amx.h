/* Included before each C++ file of llama.cpp, so that what is measured runs. GCC 12 tells the optimiser that
   _tile_loadconfig reads 8 bytes of its 64, so it drops what llama.cpp wrote to the others, and the processor refuses
   the instruction: llama.cpp would crash at its first product on a processor with AMX. */
#if defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])(config)))
#endif
