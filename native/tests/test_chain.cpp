#include "../src/chain.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

using namespace mlxcel;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> row_of(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

// Chains with one stage each, and with several.
std::vector<Chain> chains() {
  std::vector<Chain> all(13);
  all[1].top_n_sigma = 1.0;
  all[2].p_less = true;
  all[3].typical_p = 0.9;
  all[4].top_k = 40;
  all[5].top_p = 0.9;
  all[6].min_p = 0.05;
  all[7].dynatemp_range = 0.5;
  all[8].mirostat = 1;
  all[9].mirostat = 2;
  all[10].adaptive = true;
  all[11].top_n_sigma = 2.0;
  all[11].p_less = true;
  all[11].typical_p = 0.95;
  all[11].top_k = 20;
  all[11].top_p = 0.9;
  all[11].min_p = 0.01;
  all[11].dynatemp_range = 0.2;
  all[12] = all[11];
  all[12].min_keep = 30;
  return all;
}

}  // namespace

// The definitions are checked in Python, where numpy has them too; here, that every instruction set follows the same.
TEST(chain_is_the_same_everywhere) {
  for (const int n : {1, 15, 16, 17, 1000, 40000}) {
    const std::vector<float> row = row_of(n, static_cast<unsigned>(n));
    for (const Chain& chain : chains()) {
      for (const bool exclude : {false, true}) {
        for (const double uniform : {0.0, 0.3, 0.99}) {
          const Step step{uniform, exclude, 3.0};
          const Choice expected = choose(*available().front(), row.data(), n, chain, step);
          CHECK(expected.token >= 0 && expected.token < n && expected.share > 0.0 && expected.share <= 1.0);
          for (const Kernels* kernels : available()) {
            const Choice choice = choose(*kernels, row.data(), n, chain, step);
            CHECK(choice.token == expected.token && choice.share == expected.share);
          }
        }
      }
    }
  }
}

TEST(chain_of_a_row_without_numbers) {
  for (const Kernels* kernels : available()) {
    for (const std::vector<float>& row :
         {std::vector<float>{1.0f, std::nanf("")}, {-kInf, -kInf}, {kInf, 0.0f}, {std::nanf("")}}) {
      CHECK(choose(*kernels, row.data(), static_cast<int>(row.size()), Chain(), {0.5, true, 1.0}).token == -1);
    }
  }
}

TEST(chain_leaves_masked_tokens_alone) {
  std::vector<float> row(300, -kInf);
  row[7] = 1.0f;
  row[290] = 0.5f;
  for (const Kernels* kernels : available()) {
    for (const Chain& chain : chains()) {
      for (const double uniform : {0.0, 0.5, 0.999}) {
        const int token = choose(*kernels, row.data(), 300, chain, {uniform, true, 3.0}).token;
        CHECK(token == 7 || token == 290);
      }
    }
  }
}

TEST(chain_chooses_among_what_the_mask_allows) {
  const auto check = [](int n, bool few) {
    const std::vector<float> row = row_of(n, static_cast<unsigned>(n));
    std::mt19937 random(n);
    std::vector<uint32_t> words((n + 31) / 32 + 1);
    for (uint32_t& word : words) {
      word = static_cast<uint32_t>(random());
      for (int i = 0; few && i < 4; i++) word &= static_cast<uint32_t>(random());
    }
    words[0] |= 1;
    std::vector<float> masked = row;
    for (int i = 0; i < n; i++) {
      if (!(words[i / 32] >> i % 32 & 1)) masked[i] = -kInf;
    }
    for (const Kernels* kernels : available()) {
      for (const Chain& chain : chains()) {
        for (const double uniform : {0.0, 0.5, 0.999}) {
          const Step step{uniform, true, 3.0};
          const Choice choice = choose(*kernels, row.data(), n, chain, step, words.data());
          const Choice expected = choose(*kernels, masked.data(), n, chain, step);
          CHECK(choice.token == expected.token && choice.share == expected.share);
        }
      }
      const std::vector<uint32_t> none(words.size(), 0);
      CHECK(choose(*kernels, row.data(), n, Chain(), {0.5, false, 1.0}, none.data()).token == -1);
    }
  };
  for (const int n : {1, 31, 32, 33, 1000, 40000}) {
    check(n, false);
    check(n, true);
  }
}

TEST(chain_excludes_top_choices) {
  const std::vector<float> row{std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  Chain chain;
  chain.xtc_threshold = 0.15;
  const Choice choice = choose(*available().front(), row.data(), 4, chain, {0.0, true, 0.0});
  CHECK(choice.token == 2);
  CHECK_CLOSE(choice.share, 2.0 / 3.0, 1e-6);
  chain.xtc_threshold = 0.35;  // only one is as likely
  CHECK(choose(*available().front(), row.data(), 4, chain, {0.0, true, 0.0}).token == 0);
}
