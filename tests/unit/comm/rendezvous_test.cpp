// Ranks that other programs started find each other.
#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/socket_comm.h"

namespace hysparse {
namespace {

constexpr const char* kNames[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK",
                                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "MPI_LOCALRANKID",
                                  "MPI_LOCALNRANKS",
                                  "SLURM_PROCID",
                                  "SLURM_NTASKS",
                                  "SLURM_LOCALID",
                                  "SLURM_NNODES",
                                  "SLURM_JOB_ID",
                                  "MASTER_ADDR",
                                  "MASTER_PORT"};

RankEnvironment read(const std::map<std::string, std::string>& variables) {
  for (const char* name : kNames) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return read_rank_environment();
}
std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    read(variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    return e.what();
  }
  return "no error";
}

TEST(RankEnvironment, OfEveryLauncher) {
  RankEnvironment e = read({{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(std::tuple(e.rank, e.size, e.local_rank, e.address, e.port),
            std::tuple(3, 4, 1, "127.0.0.1", 29500));
  e = read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(std::tuple(e.rank, e.size, e.port), std::tuple(0, 2, 1234));
  e = read({{"SLURM_PROCID", "5"},
            {"SLURM_NTASKS", "8"},
            {"SLURM_LOCALID", "1"},
            {"SLURM_NNODES", "2"},
            {"SLURM_JOB_ID", "123456"},
            {"MASTER_ADDR", "node7"}});
  EXPECT_EQ(std::tuple(e.rank, e.size, e.local_rank, e.address, e.port), std::tuple(5, 8, 1, "node7", 18456));
  // torchrun's own variables go before those of the Slurm job it runs in.
  e = read({{"RANK", "1"},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", "1"},
            {"MASTER_ADDR", "10.0.0.1"},
            {"MASTER_PORT", "7"},
            {"SLURM_PROCID", "0"},
            {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(std::tuple(e.rank, e.size, e.address, e.port), std::tuple(1, 2, "10.0.0.1", 7));
}

TEST(RankEnvironment, WhatMakesNoSenseIsRefusedByName) {
  EXPECT_NE(refusal({}).find("mpirun, srun or torchrun"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}})
                .find("RANK: expected a whole number from 0 to 1, got \"2\""),
            std::string::npos);
  EXPECT_NE(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(
      refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NNODES", "2"}}).find("MASTER_ADDR"),
      std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}})
                .find("MASTER_PORT"),
            std::string::npos);
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof a;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&a), &length), 0);
  close(fd);
  return ntohs(a.sin_port);
}

// In any order of arrival, and with a stranger at the door.
TEST(Rendezvous, RanksComeTogetherOverTcp) {
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int r = 0; r < 4; ++r)
    ranks.emplace_back([=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(40 * (r == 0 ? 2 : 3 - r)));
      SocketComm comm(join_ranks({.rank = r, .size = 4, .port = port}));
      double x[] = {1.0 * r, 1.0};
      comm.all_reduce_values(x);
      EXPECT_EQ(x[0], 6.0);
      EXPECT_EQ(x[1], 4.0);
      comm.barrier();
    });
  std::thread stranger([=] {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(port));
    for (int i = 0; i < 20; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) {
        [[maybe_unused]] const ssize_t n = write(fd, "GET / HTTP/1.0\r\n\r\n", 18);
        close(fd);
        return;
      }
      close(fd);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  for (std::thread& t : ranks) t.join();
  stranger.join();
}

TEST(Rendezvous, WhoDoesNotComeIsNamed) {
  const int port = free_port();
  std::string errors[2];
  std::vector<std::thread> ranks;
  for (const int r : {0, 2})
    ranks.emplace_back([&, r] {
      try {
        join_ranks({.rank = r, .size = 3, .port = port}, 0.5);
      } catch (const Error& e) {
        errors[r / 2] = e.what();
      }
    });
  for (std::thread& t : ranks) t.join();
  EXPECT_NE(errors[0].find("of 3 ranks these did not come: 1"), std::string::npos) << errors[0];
  EXPECT_FALSE(errors[1].empty());
}

TEST(Rendezvous, AHostThatIsNoneIsBadInput) {
  try {
    join_ranks({.rank = 1, .size = 2, .address = "no.such.host.invalid"}, 1);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
  }
}

}  // namespace
}  // namespace hysparse
