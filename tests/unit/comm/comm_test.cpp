// The operations of ranks: the same on sockets and on NCCL (a stand-in that speaks its ABI), at 1 to 5 ranks.
#include "comm/comm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/rng.h"
#include "comm/nccl_comm.h"
#include "unit/support/ranks.h"

namespace hysparse {
namespace {

using namespace tests;

struct Kind {
  const char* name;
  std::unique_ptr<Comm> (*make)(std::shared_ptr<Mesh>);
};

class CommTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  static int ranks() { return std::get<int>(GetParam()); }
  static void all(const std::function<void(Comm&)>& body) {
    with_meshes(ranks(), [&](std::shared_ptr<Mesh> mesh) {
      const std::unique_ptr<Comm> comm = std::get<Kind>(GetParam()).make(std::move(mesh));
      body(*comm);
    });
  }
};

// What rank r holds at i: a number that bf16 holds exactly, and its sums too.
int value(int r, int64_t i) {
  return static_cast<int>((i * 7 + r * 3) % 16);
}
int sum_at(int size, int64_t i) {
  int sum = 0;
  for (int r = 0; r < size; ++r) sum += value(r, i);
  return sum;
}

void set(const TensorView& t, int64_t i, int x) {
  if (t.dtype == DType::f64) t.as<double>()[i] = x;
  if (t.dtype == DType::f32) t.as<float>()[i] = static_cast<float>(x);
  if (t.dtype == DType::bf16) t.as<bf16>()[i] = bf16(static_cast<float>(x));
  if (t.dtype == DType::i64) t.as<int64_t>()[i] = x;
}
double get(const TensorView& t, int64_t i) {
  if (t.dtype == DType::f64) return t.as<double>()[i];
  if (t.dtype == DType::f32) return t.as<float>()[i];
  if (t.dtype == DType::bf16) return static_cast<float>(t.as<bf16>()[i]);
  return static_cast<double>(t.as<int64_t>()[i]);
}
Tensor values(DType dtype, int64_t n, int rank) {
  Tensor t(dtype, {n});
  for (int64_t i = 0; i < n; ++i) set(t, i, value(rank, i));
  return t;
}

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::i64};

TEST_P(CommTest, AllReduceSumsAndFindsTheLargest) {
  all([](Comm& comm) {
    for (const DType dtype : kTypes)
      for (const int64_t n : {0, 1, 3, 64, 1001}) {
        const Tensor sum = values(dtype, n, comm.rank()), largest = values(dtype, n, comm.rank());
        comm.all_reduce(sum, Reduce::sum);
        comm.all_reduce(largest, Reduce::max);
        for (int64_t i = 0; i < n; ++i) {
          int most = 0;
          for (int r = 0; r < comm.size(); ++r) most = std::max(most, value(r, i));
          ASSERT_EQ(get(sum, i), sum_at(comm.size(), i)) << name_of(dtype) << " " << i;
          ASSERT_EQ(get(largest, i), most) << name_of(dtype) << " " << i;
        }
      }
  });
}

TEST_P(CommTest, ReduceScatterGivesEachItsPieceAlsoInPlace) {
  all([](Comm& comm) {
    for (const DType dtype : kTypes)
      for (const int64_t n : {1, 5, 700}) {
        const Tensor in = values(dtype, n * comm.size(), comm.rank()), out(dtype, {n});
        comm.reduce_scatter(in, out);
        const TensorView mine = in.view().rows(comm.rank() * n, (comm.rank() + 1) * n);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(get(out, i), sum_at(comm.size(), comm.rank() * n + i));
        for (int64_t i = 0; i < n * comm.size(); ++i)
          ASSERT_EQ(get(in, i), value(comm.rank(), i)) << "changed";
        comm.reduce_scatter(in, mine);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(get(mine, i), sum_at(comm.size(), comm.rank() * n + i));
      }
  });
}

TEST_P(CommTest, AllGatherKeepsTheOrderOfRanksAlsoInPlace) {
  all([](Comm& comm) {
    for (const DType dtype : kTypes)
      for (const int64_t n : {1, 5, 700}) {
        const Tensor in = values(dtype, n, comm.rank()), out(dtype, {n * comm.size()}),
                     whole(dtype, {n * comm.size()});
        const TensorView mine = whole.view().rows(comm.rank() * n, (comm.rank() + 1) * n);
        for (int64_t i = 0; i < n; ++i) set(mine, i, value(comm.rank(), i));
        comm.all_gather(in, out);
        comm.all_gather(mine, whole);
        for (int r = 0; r < comm.size(); ++r)
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(get(out, r * n + i), value(r, i));
            ASSERT_EQ(get(whole, r * n + i), value(r, i));
          }
      }
  });
}

TEST_P(CommTest, AllToAllBringsEachPieceToItsRank) {
  all([](Comm& comm) {
    for (const int64_t n : {1, 33}) {
      const Tensor in = values(DType::f32, n * comm.size(), comm.rank()), out(DType::f32, {n * comm.size()});
      comm.all_to_all(in, out);
      for (int r = 0; r < comm.size(); ++r)
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(get(out, r * n + i), value(r, comm.rank() * n + i));
    }
  });
}

TEST_P(CommTest, BroadcastReachesAll) {
  all([](Comm& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const Tensor x = values(DType::f32, 17, comm.rank());
      comm.broadcast(x, root);
      for (int64_t i = 0; i < 17; ++i) ASSERT_EQ(get(x, i), value(root, i));
    }
  });
}

TEST_P(CommTest, SmallFactsAreSharedOnTheHost) {
  all([](Comm& comm) {
    std::vector<double> x{1.0, static_cast<double>(comm.rank())};
    comm.all_reduce_values(x);
    EXPECT_EQ(x[0], comm.size());
    EXPECT_EQ(x[1], comm.size() * (comm.size() - 1) / 2);
    EXPECT_FALSE(comm.any(false));
    EXPECT_TRUE(comm.any(comm.rank() == comm.size() - 1));
    comm.barrier();
  });
}

const Kind kSockets{"sockets", [](std::shared_ptr<Mesh> mesh) -> std::unique_ptr<Comm> {
                      return std::make_unique<SocketComm>(std::move(mesh));
                    }};
const Kind kNccl{"nccl", [](std::shared_ptr<Mesh> mesh) {
                   static const int named = setenv("HYSPARSE_NCCL_LIBRARY", HYSPARSE_FAKE_NCCL, 1);
                   EXPECT_EQ(named, 0);
                   std::unique_ptr<Comm> comm = make_nccl_comm(std::move(mesh));
                   EXPECT_EQ(comm->name(), "NCCL 2.34.56");
                   return comm;
                 }};
INSTANTIATE_TEST_SUITE_P(Ranks, CommTest,
                         testing::Combine(testing::Values(kSockets, kNccl), testing::Values(1, 2, 4, 5)),
                         [](const auto& info) {
                           return std::string(std::get<Kind>(info.param).name) +
                                  std::to_string(std::get<int>(info.param));
                         });

// More than one message of a piece; rounding errors are the same on all ranks.
TEST(SocketComm, LongTensorsAndTheSameBitsOnAllRanks) {
  constexpr int64_t kLong = (int64_t(1) << 20) * 3 + 20;
  std::vector<std::vector<float>> results(3);
  with_ranks(3, [&](Comm& comm) {
    const Tensor x(DType::f32, {kLong});
    Rng rng(static_cast<uint64_t>(comm.rank()));
    for (int64_t i = 0; i < kLong; ++i) x.view().as<float>()[i] = static_cast<float>(rng.normal());
    comm.all_reduce(x, Reduce::sum);
    results[static_cast<size_t>(comm.rank())].assign(x.view().as<float>(), x.view().as<float>() + kLong);
  });
  EXPECT_TRUE(results[0] == results[1] && results[0] == results[2]);
  Rng a(0), b(1), c(2);
  const auto next = [](Rng& r) { return static_cast<double>(static_cast<float>(r.normal())); };
  for (int64_t i = 0; i < kLong; ++i) {
    const double sum = next(a) + next(b) + next(c);
    ASSERT_NEAR(results[0][static_cast<size_t>(i)], sum, 1e-6 * (1 + std::abs(sum))) << i;
  }
}

TEST(SocketComm, NotANumberStaysOne) {
  with_ranks(2, [](Comm& comm) {
    double x[] = {comm.rank() == 0 ? NAN : 1.0, comm.rank() == 1 ? NAN : 1.0};
    double y[] = {x[0], x[1]};
    comm.all_reduce_values(x);
    comm.all_reduce_values(y, Reduce::max);
    for (const double v : {x[0], x[1], y[0], y[1]}) EXPECT_TRUE(std::isnan(v));
  });
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure) << e.what();
    return e.what();
  }
  return "no error";
}

TEST(SocketComm, ARankThatIsGoneIsAnErrorOfAllOthers) {
  with_ranks(3, [](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) return;  // its sockets close
    // Or the other one, which has noticed before.
    EXPECT_NE(error_of([&] { comm.barrier(); }).find("is gone"), std::string::npos);
  });
}

// The first to notice says so; the other may find it gone by then.
TEST(SocketComm, RanksAtDifferentPlacesAreAnError) {
  std::string errors[2];
  with_ranks(2, [&](Comm& comm) {
    const Tensor x(DType::f32, {8});
    errors[comm.rank()] = error_of([&] {
      if (comm.rank() == 0)
        comm.barrier();
      else
        comm.broadcast(x, 1);
    });
  });
  const std::string both = errors[0] + errors[1];
  EXPECT_NE(both.find("is not where"), std::string::npos) << both;
  EXPECT_EQ(both.find("no error"), std::string::npos) << both;
}

TEST(NcclComm, ALibraryThatIsNotThereIsSaid) {
  const char* before = std::getenv("HYSPARSE_NCCL_LIBRARY");
  const std::string kept = before ? before : "";
  setenv("HYSPARSE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const std::string error = error_of([] { make_nccl_comm(std::make_shared<Mesh>(0, std::vector<int>{-1})); });
  EXPECT_NE(error.find("/nowhere/libnccl.so.2 could not be opened"), std::string::npos) << error;
  EXPECT_NE(error.find("HYSPARSE_NCCL_LIBRARY"), std::string::npos) << error;
  if (before)
    setenv("HYSPARSE_NCCL_LIBRARY", kept.c_str(), 1);
  else
    unsetenv("HYSPARSE_NCCL_LIBRARY");
}

TEST(SelfComm, IsOneRank) {
  Comm& comm = self_comm();
  const Tensor x = values(DType::f32, 8, 0);
  comm.all_reduce(x, Reduce::sum);
  comm.reduce_scatter(x, x);
  comm.all_gather(x, x);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(get(x, i), value(0, i));
  EXPECT_EQ(comm.size(), 1);
  EXPECT_TRUE(comm.any(true));
  EXPECT_THROW(comm.reduce_scatter(x, Tensor(DType::f32, {4})), Error);
  EXPECT_THROW(comm.all_reduce(Tensor(DType::i32, {4}), Reduce::sum), Error);
}

}  // namespace
}  // namespace hysparse
