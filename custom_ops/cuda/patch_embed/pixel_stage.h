// Pixels of patches on their way to a tile of 16-bit elements.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_PIXEL_STAGE_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_PIXEL_STAGE_H_

#include "custom_ops/cuda/patch_embed/octets.h"
#include "custom_ops/cuda/patch_embed/places.h"
#include "custom_ops/cuda/tensor_tiles.h"

namespace vit {

// Rows of the tile are patches, columns are elements of patches. A thread has 16 pixels of a tile.
// It loads 8 at a time to registers, and stores them to the tile when it has done other work, in
// which they arrive.
template <class T, int kRows, int kColumns>
struct PixelStage {
  static constexpr int kThreads = kTensorThreads, kInRow = kColumns / kOctet;
  static_assert(kRows * kColumns == 2 * kOctet * kThreads && kThreads % kColumns == 0);

  const Pixels& pixels;
  const PatchGrid& grid;
  uint32_t words[kOctet] = {};  // without vectors one pixel per word
  uint32_t valid = 0;           // a bit per pixel, or bit 0 for a vector

  // Loads half of the elements from `first` on of the patches at `places`.
  VIT_DEVICE_METHOD void load(const int64_t* places, int64_t first, int half) {
    valid = 0;
    with_type(pixels.type, [&](auto* type) {
      load_as(static_cast<decltype(type)>(pixels.images), places, first, half);
    });
  }

  // Stores them, rescaled and rounded; zeros where there are no patches or elements.
  VIT_DEVICE_METHOD void store(const Tile<T, kRows, kColumns>& tile, int half) const {
    with_type(pixels.type, [&](auto* type) { store_as(type, tile, half); });
  }

 private:
  template <class Pixel>
  VIT_DEVICE_METHOD void load_as(const Pixel* images, const int64_t* places, int64_t first,
                                 int half) {
    if (pixels.is_aligned) return load_vector(images, places, first, half);
    const int64_t element = first + thread_index() % kColumns;
    if (element >= grid.elements) return;
    images += place_of_element(grid, element);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const int64_t place = places[row_of(i, half)];
      if (place == kNoPlace) continue;
      valid |= 1u << i;
      words[i] = bits_of_number(images[place]);
    }
  }

  template <class Pixel>
  VIT_DEVICE_METHOD void load_vector(const Pixel* images, const int64_t* places, int64_t first,
                                     int half) {
    constexpr int kWords = 2 * sizeof(Pixel), kVector = kWords < 4 ? kWords : 4;
    const int i = thread_index() + half * kThreads;
    const int64_t place = places[i / kInRow], element = first + i % kInRow * kOctet;
    if (place == kNoPlace || element >= grid.elements) return;
    valid = 1;
    const Pixel* from = images + place + place_of_element(grid, element);
#pragma unroll
    for (int w = 0; w < kWords; w += kVector) {
      load_words<kVector>(from + w * 4 / sizeof(Pixel), words + w);
    }
  }

  template <class Pixel>
  VIT_DEVICE_METHOD void store_as(const Pixel*, const Tile<T, kRows, kColumns>& tile,
                                  int half) const {
    if (pixels.is_aligned) return store_vector<Pixel>(tile, half);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      float pixel = 0;
      if (valid >> i & 1) pixel = rescaled(pixels, number_of_bits<Pixel>(words[i]));
      *tile.at(row_of(i, half), thread_index() % kColumns) = rounded<T>(pixel);
    }
  }

  template <class Pixel>
  VIT_DEVICE_METHOD void store_vector(const Tile<T, kRows, kColumns>& tile, int half) const {
    float numbers[kOctet] = {};
    if (valid) {
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        numbers[k] = rescaled(pixels, number_of_words<Pixel>(words, k));
      }
    }
    uint32_t pairs[kOctet / 2];
#pragma unroll
    for (int k = 0; k < kOctet; k += 2) pairs[k / 2] = packed<T>(numbers[k], numbers[k + 1]);
    const int i = thread_index() + half * kThreads;
    store_words<4>(tile.at(i / kInRow, i % kInRow * kOctet), pairs);
  }

  static VIT_DEVICE_METHOD int row_of(int i, int half) {
    return thread_index() / kColumns + (half * kOctet + i) * (kThreads / kColumns);
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_PIXEL_STAGE_H_
