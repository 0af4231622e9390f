/* A submitted solution: it adds the numbers on its standard input. It fails one of the tests. */
#include <stdio.h>

int main(void)
{
    int sum = 0, number;
    while (scanf("%d", &number) == 1)
        sum += number;
    printf("%d\n", sum);
    return 0;
}
