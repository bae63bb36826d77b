from standin_server import main

if __name__ == "__main__":
    main(sglang=False)
